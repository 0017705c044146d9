package rebuild

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// setRules loads the report's rules in place of the lab's, if they are others.
func (p *patient) setRules(ctx context.Context) {
	if _, ok := p.files["nft.txt"]; !ok {
		p.leave("firewall rules: nft was not installed there")
		return
	}
	have := collectFrom(ctx, p.Exec)
	same := true
	for _, name := range []string{"nft.txt", "iptables-save.txt", "ip6tables-save.txt"} {
		same = same && withoutCounters(p.names.replace(p.files[name])) == withoutCounters(have[name])
	}
	if same {
		return
	}
	tables, err := nftTables(withoutCounters(p.names.replace(p.files["nft.txt"])))
	if err == nil {
		err = p.LoadRules(ctx, "flush ruleset\n")
	}
	for _, program := range []string{"iptables", "ip6tables"} {
		saved := withoutCounters(p.names.replace(p.files[program+"-save.txt"]))
		rules, left := iptablesRules(saved, chainsOf(string(p.names.replace(p.files["nft.txt"])), program))
		for _, line := range left {
			p.leave("%s rule %s", program, line)
		}
		var stderr bytes.Buffer
		if rules == "" {
			continue
		}
		if err := p.Attach(ctx, strings.NewReader(rules), io.Discard, &stderr, program+"-restore"); err != nil {
			p.leave("%s rules: %v: %s", program, err, strings.TrimSpace(stderr.String()))
		}
	}
	if err == nil {
		err = p.LoadRules(ctx, tables)
	}
	for _, rule := range markedRules(withoutCounters(p.names.replace(p.files["nft.txt"]))) {
		if err == nil {
			err = p.LoadRules(ctx, rule)
		}
	}
	if err != nil {
		p.leave("nftables rules: %v", err)
	}
}

// counters match how often rules were met, and when they were saved.
var counters = regexp.MustCompile(`(?m)(counter) packets \d+ bytes \d+|^\[\d+:\d+\] | \[\d+:\d+\]$|^#.*\n?`)

func withoutCounters(text []byte) string {
	return strings.TrimSpace(string(counters.ReplaceAll(append(text, '\n'), []byte("$1"))))
}

var (
	nftTable = regexp.MustCompile(`^table (ip|ip6|inet|arp|bridge|netdev) (\S+) \{$`)
	include  = regexp.MustCompile(`(?i)\binclude\b`)
)

// nftTables are the tables in the output of "nft list ruleset" without those of iptables. What reads other files is an error.
func nftTables(text string) (string, error) {
	if include.MatchString(text) {
		return "", fmt.Errorf("nft.txt has the word include: want the output of nft list ruleset")
	}
	var kept strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if m := nftTable.FindStringSubmatch(line); m != nil {
			inside = !ofIPTables(m[1] + " " + m[2])
		}
		if inside {
			kept.WriteString(line + "\n")
		}
		if line == "}" {
			inside = false
		}
	}
	return kept.String(), nil
}

// mark begins the comments of the agent's own rules in iptables' chains. iptables-restore would write them in another way.
const mark = `comment "twill `

var nftChain = regexp.MustCompile(`^\tchain (\S+) \{$`)

// markedRules are commands that put the agent's rules into iptables' chains where they were between the others.
func markedRules(text string) (commands []string) {
	var table, chain string
	var place int
	total := map[string]int{}
	for _, counting := range []bool{true, false} {
		held := map[string]int{}
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\r\n")
			if m := nftTable.FindStringSubmatch(line); m != nil {
				table = m[1] + " " + m[2]
			} else if m := nftChain.FindStringSubmatch(line); m != nil {
				chain, place = table+" "+m[1], 0
			} else if rule := strings.TrimSpace(line); strings.HasPrefix(line, "\t\t") && !strings.HasPrefix(rule, "type ") {
				isMarked := strings.Contains(rule, mark)
				switch {
				case counting && !isMarked:
					total[chain]++
				case !counting && isMarked && ofIPTables(table):
					verb := "add rule " + chain
					if place < total[chain]+held[chain] {
						verb = fmt.Sprintf("insert rule %s index %d", chain, place)
					}
					commands = append(commands, verb+" "+rule+"\n")
					held[chain]++
				}
				place++
			}
		}
	}
	return commands
}

// ofIPTables reports whether a table, as "ip filter", is one of iptables-nft's.
func ofIPTables(table string) bool {
	family, name, _ := strings.Cut(table, " ")
	return (family == "ip" || family == "ip6") && slices.Contains(tablesOfIPTables, name)
}

var tablesOfIPTables = []string{"filter", "nat", "mangle", "raw", "security"}

var (
	iptablesTable = regexp.MustCompile(`^\*(filter|nat|mangle|raw|security)$`)
	iptablesChain = regexp.MustCompile(`^:([A-Za-z0-9_.:-]{1,28}) (ACCEPT|DROP|-)$`)
	iptablesRule  = regexp.MustCompile(`^-A [A-Za-z0-9_.:-]{1,28}( |$)`)
	quoted        = regexp.MustCompile(`"[^"]*"`)
	module        = regexp.MustCompile(`(^| )-[mjg] ([A-Za-z0-9_-]+)`)
	anyModule     = regexp.MustCompile(`(^| )-[mjg] `)
)

// options are those of rules that are loaded: none of them names a file or a program.
var options = strings.Fields(`-A -s -d -p -m -i -o -j -g --dport --sport --dports --sports --ports --comment --ctstate --ctorigdst
	--ctorigdstport --ctorigsrc --ctproto --ctdir --state --mark --set-xmark --set-mark --save-mark --restore-mark --nfmask --ctmask --mask
	--to-source --to-destination --to-ports --to --random --random-fully --persistent --reject-with --src-type --dst-type
	--limit-iface-in --icmp-type --icmpv6-type --limit --limit-burst --tcp-flags --syn --set-mss --clamp-mss-to-pmtu --mss --length
	--pkt-type --probability --mode --every --packet --src-range --dst-range --physdev-is-bridged --physdev-in --physdev-out
	--uid-owner --gid-owner --mac-source --checksum-fill --notrack --log-prefix --log-level --nflog-group --nflog-prefix`)

// chainsOf are the chains of iptables or ip6tables in the output of "nft list ruleset", by their tables.
func chainsOf(text, program string) map[string][]string {
	family := map[string]string{"iptables": "ip", "ip6tables": "ip6"}[program]
	chains, table := map[string][]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if m := nftTable.FindStringSubmatch(line); m != nil {
			table = map[bool]string{true: m[2]}[m[1] == family]
		} else if m := nftChain.FindStringSubmatch(line); m != nil && table != "" {
			chains[table] = append(chains[table], m[1])
		}
	}
	return chains
}

// iptablesRules are what iptables-restore gets of the output of iptables-save without counters, and the lines that it does
// not. Chains that a table of nftables does not have are left out: iptables-save lists those that are not yet made, too.
func iptablesRules(text string, chains map[string][]string) (rules string, left []string) {
	var kept strings.Builder
	var table string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if m := iptablesTable.FindStringSubmatch(line); m != nil {
			table = m[1]
		}
		m := iptablesChain.FindStringSubmatch(line)
		switch {
		case m != nil && len(chains[table]) > 0 && !slices.Contains(chains[table], m[1]):
		case line == "" || strings.Contains(line, mark): // see markedRules
		case line == "COMMIT" || iptablesTable.MatchString(line) || m != nil || isRule(line):
			kept.WriteString(line + "\n")
		default:
			left = append(left, line)
		}
	}
	return kept.String(), left
}

func isRule(line string) bool {
	if !iptablesRule.MatchString(line) || strings.ContainsAny(line, "\\'") || strings.Count(line, `"`)%2 != 0 {
		return false
	}
	bare := quoted.ReplaceAllString(line, "x")
	if len(module.FindAllString(bare, -1)) != len(anyModule.FindAllString(bare, -1)) {
		return false
	}
	return !slices.ContainsFunc(strings.Fields(bare), func(word string) bool {
		return strings.HasPrefix(word, "-") && !slices.Contains(options, word)
	})
}
