package savedrule

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/internal/shell"
)

// Chain is a chain of a table.
type Chain struct {
	Table, Name string
	Policy      string // ACCEPT, DROP; empty: it has none
	Packets     uint64 // that met the policy; 0 without counters
	Rules       []Rule
}

// Rule is a rule of a chain.
type Rule struct {
	Text    string   // "-A FORWARD -s 10.0.0.0/8 -j DROP", without counters
	Words   []string // of Text, as iptables-restore reads them
	Packets uint64   // that met the rule; 0 without counters
}

// Comment returns the rule's comment, empty if it has none.
func (r Rule) Comment() string {
	if i := slices.Index(r.Words, "--comment"); i >= 0 && i+1 < len(r.Words) {
		return r.Words[i+1]
	}
	return ""
}

// Delete returns the command with which tool (iptables) deletes the rule from a table.
func (r Rule) Delete(tool, table string) string {
	return shell.Join(append([]string{tool, "-t", table, "-D"}, r.Words[1:]...)...)
}

// Parse reads the output of iptables-save and its relatives, with or without counters. Rules of chains that it does not
// list are left out.
func Parse(out string) []Chain {
	var chains []Chain
	table, places := "", map[string]int{}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table, places = line[1:], map[string]int{}
		case strings.HasPrefix(line, ":"):
			c := parseChain(line[1:])
			c.Table = table
			places[c.Name] = len(chains)
			chains = append(chains, c)
		default:
			name, r := parseRule(line)
			if i, ok := places[name]; ok && r.Words != nil {
				chains[i].Rules = append(chains[i].Rules, r)
			}
		}
	}
	return chains
}

// parseChain reads "INPUT DROP [3:84]"; the policy of a chain that has none is "-".
func parseChain(line string) Chain {
	name, rest, _ := strings.Cut(line, " ")
	policy, count, _ := strings.Cut(rest, " ")
	return Chain{Name: name, Policy: strings.Trim(policy, "-"), Packets: packets(count)}
}

// parseRule reads "[5:420] -A INPUT -j DROP". It returns the name of the chain, or empty for what is no rule.
func parseRule(line string) (chain string, r Rule) {
	if count, rest, ok := strings.Cut(line, " "); ok && counters.MatchString(count) {
		r.Packets, line = packets(count), strings.TrimSpace(rest)
	}
	words := Words(line)
	if len(words) < 2 || words[0] != "-A" {
		return "", r
	}
	r.Text, r.Words = line, words
	return words[1], r
}

var counters = regexp.MustCompile(`^\[(\d+):\d+\]$`)

// packets returns the first of the counters "[packets:bytes]".
func packets(word string) uint64 {
	found := counters.FindStringSubmatch(word)
	if found == nil {
		return 0
	}
	n, _ := strconv.ParseUint(found[1], 10, 64)
	return n
}
