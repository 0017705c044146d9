package ruletrace

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/twill-net/twill/internal/savedrule"
)

var (
	// chainLine begins a chain of arptables: "Chain INPUT (policy DROP 3 packets, 84 bytes)", "Chain own (1 references)";
	// or one of ebtables: "Bridge chain: INPUT, entries: 0, policy: ACCEPT".
	chainLine = regexp.MustCompile(
		`^Chain (\S+) \((?:policy (\w+)(?: (\d+)\S* packets)?)?|^Bridge chain: (\S+), .*policy: (\w+)$`)
	// countedLine is a rule: "-j DROP -s 192.0.2.1 , pcnt=3 -- bcnt=84".
	countedLine = regexp.MustCompile(`^(.*?)\s*, pcnt ?= ?(\d+) -- bcnt ?= ?\d+\s*$`)
	// anyDevice is what the programs print of a rule for all devices, and do not read.
	anyDevice = regexp.MustCompile(`-[io] \* ?`)
)

// parseListing reads the output of "arptables-legacy -L -n -v" and "ebtables-legacy -L --Lc". Their programs that save
// have no counters, and policies of ebtables have none at all.
func parseListing(out string) []savedrule.Chain {
	var chains []savedrule.Chain
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if found := chainLine.FindStringSubmatch(line); found != nil {
			n, _ := strconv.ParseUint(found[3], 10, 64)
			chains = append(chains, savedrule.Chain{Name: found[1] + found[4], Policy: found[2] + found[5], Packets: n})
			continue
		}
		found := countedLine.FindStringSubmatch(line)
		if found == nil || len(chains) == 0 {
			continue
		}
		c := &chains[len(chains)-1]
		text := "-A " + c.Name + " " + anyDevice.ReplaceAllString(found[1], "")
		n, _ := strconv.ParseUint(found[2], 10, 64)
		c.Rules = append(c.Rules, savedrule.Rule{Text: text, Words: savedrule.Words(text), Packets: n})
	}
	return chains
}
