//go:build soak

package guest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// picture is what of the host is not Twill's, line by line, under what it was read by.
type picture map[string][]string

// dumps are the commands that read the host.
var dumps = []string{
	"ip -o -d link show", "ip -o addr show", "ip -4 route show table all", "ip -6 route show table all", "ip -4 rule show",
	"ip -6 rule show", "nft list ruleset", "iptables-legacy-save; ip6tables-legacy-save", "sysctl -a -r '^net[.]ipv[46]|^net[.]bridge'",
}

// ofFiles is what files are read by.
const ofFiles = "files"

// volatile are the parts of lines that change by themselves.
var volatile = regexp.MustCompile(`packets \d+ bytes \d+|\[\d+:\d+\]|valid_lft \w+|preferred_lft \w+|expires \d+sec|# (Generated|Completed).*|` +
	` (qdisc|state|linkdown|dadfailed|tentative)\b( \w+)?|\w+_timer +[\d.]+|promiscuity \d+|allmulti \d+|<[A-Z_,-]+>|pref medium|^\d+: `)

// ours matches lines that are Twill's.
var ours = regexp.MustCompile(`\bfe80::|\bff00::/8 dev|anycast|\b(cni0|flannel[.\w-]*|veth\w*)\b|proto 116|10[.]244[.][129][.]|fd00:244:0:[129]:|` +
	`FLANNEL-|TWILL-|twill|flanneld|@if\d+: .* link-netns`)

// ourTable matches the first lines of Twill's tables.
var ourTable = regexp.MustCompile(`^table (ip flannel-ipv4|ip6 flannel-ipv6|\w+ twill-policy)\b`)

// noise matches parameters that the kernel changes by itself.
var noise = regexp.MustCompile(`netfilter|nf_conntrack|neigh\.|stable_secret|flow|fib_sync|tcp_fastopen_key|idgen`)

// isExempt reports whether a parameter may change.
func isExempt(line string) bool {
	return noise.MatchString(line) || slices.ContainsFunc(exemptions, func(e exemption) bool {
		return regexp.MustCompile(e.pattern).MatchString(line)
	})
}

// look reads the host.
func (g *guest) look() picture {
	g.Helper()
	p := picture{}
	for _, command := range dumps {
		out, _ := g.node.Exec(g.Context(), "sh", "-c", command+" 2>/dev/null; true")
		p[command] = g.foreign(command, out)
	}
	p[ofFiles] = g.files()
	return p
}

// foreign returns the lines that are not Twill's. Of nft, that is whole tables.
func (g *guest) foreign(command, out string) (lines []string) {
	table, chain := "", ""
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "table ") {
			table, chain = line, ""
		}
		if c := strings.TrimSpace(line); strings.HasPrefix(c, "chain ") {
			chain = c
		}
		if strings.Contains(chain, "FLANNEL-") || strings.Contains(chain, "TWILL-") || ourTable.MatchString(table) || ours.MatchString(line) {
			continue
		}
		if strings.HasPrefix(command, "sysctl") && isExempt(line) {
			continue
		}
		if line = strings.Join(strings.Fields(volatile.ReplaceAllString(line, "")), " "); line != "" && line != "}" {
			lines = append(lines, line)
		}
	}
	if command == dumps[6] && g.mode == "iptables" {
		lines = slices.DeleteFunc(lines, isBase)
	}
	if !strings.HasPrefix(command, "nft") && !strings.HasPrefix(command, "iptables") {
		slices.Sort(lines)
	}
	return lines
}

// isBase reports whether a line is of a table or base chain as iptables makes them when it is first asked for one. They
// are empty, and stay: nobody can know whose they are.
func isBase(line string) bool {
	return strings.HasPrefix(line, "table ip") || strings.HasPrefix(line, "chain ") || strings.HasPrefix(line, "type ")
}

// differs returns the lines that are gone and those that are new.
func (p picture) differs(now picture) string {
	var b strings.Builder
	for _, command := range append(slices.Clone(dumps), ofFiles) {
		for _, line := range p[command] {
			if !slices.Contains(now[command], line) {
				fmt.Fprintf(&b, "%s: - %s\n", command, line)
			}
		}
		for _, line := range now[command] {
			if !slices.Contains(p[command], line) {
				fmt.Fprintf(&b, "%s: + %s\n", command, line)
			}
		}
	}
	return b.String()
}
