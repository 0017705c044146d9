package ruletrace

import (
	"regexp"
	"strconv"
	"strings"
)

var (
	// chainLine begins a chain: "Chain INPUT (policy DROP 3 packets, 84 bytes)", "Chain own (1 references)".
	chainLine = regexp.MustCompile(`^Chain (\S+) \((?:policy (\w+)(?: (\d+)\S* packets)?)?`)
	// countedLine is a rule: "-j DROP -s 192.0.2.1 , pcnt=3 -- bcnt=84".
	countedLine = regexp.MustCompile(`^(.*?)\s*, pcnt ?= ?(\d+) -- bcnt ?= ?\d+\s*$`)
)

// parseListing reads the output of "arptables-legacy -L -n -v", whose program that saves has no counters.
func parseListing(out string) []savedChain {
	var chains []savedChain
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if found := chainLine.FindStringSubmatch(line); found != nil {
			n, _ := strconv.ParseUint(found[3], 10, 64)
			chains = append(chains, savedChain{name: found[1], policy: found[2], packets: n})
			continue
		}
		found := countedLine.FindStringSubmatch(line)
		if found == nil || len(chains) == 0 {
			continue
		}
		c := &chains[len(chains)-1]
		text := "-A " + c.name + " " + found[1]
		n, _ := strconv.ParseUint(found[2], 10, 64)
		c.rules = append(c.rules, savedRule{text, splitWords(text), n})
	}
	return chains
}
