package ruletrace

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/internal/savedrule"
)

// savedRule is a rule as iptables-save prints it.
type savedRule struct {
	text    string // "-A FORWARD -s 10.0.0.0/8 -j DROP"
	words   []string
	packets uint64
}

// savedChain is a chain as iptables-save prints it.
type savedChain struct {
	table, name string
	policy      string // empty: it has none
	packets     uint64 // that met the policy
	rules       []savedRule
}

// saved is what a tool has printed of one table.
type saved struct {
	tool   string // which reads, and deletes: iptables
	chains []savedChain
}

func (s saved) chain(name string) *savedChain {
	i := slices.IndexFunc(s.chains, func(c savedChain) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return &s.chains[i]
}

// family is a tool and its tables, which iptables' newer variant keeps in nf_tables by the same names.
type family struct {
	tool   string
	tables []string
}

var families = map[byte]family{
	unix.NFPROTO_IPV4:   {"iptables", rules.Tables},
	unix.NFPROTO_IPV6:   {"ip6tables", rules.Tables},
	unix.NFPROTO_BRIDGE: {"ebtables", []string{"filter", "nat", "broute"}},
	unix.NFPROTO_ARP:    {"arptables", []string{"filter"}},
}

// savedObject describes a rule or policy as the tool prints it that has made it, if it is one of iptables' kind: the
// tool's n-th rule of a chain is nf_tables' n-th.
func (b *book) savedObject(m *met) (locate.Object, bool) {
	f := families[m.family]
	if !slices.Contains(f.tables, m.table) {
		return locate.Object{}, false
	}
	s := b.save(m.place, f)
	c, own := s.chain(m.chain), b.set.chains[m.place]
	if c == nil || own == nil || len(c.rules) != len(own.rules) {
		return locate.Object{}, false
	}
	if m.kind == unix.NFT_TRACETYPE_POLICY {
		return c.policyObject(s.tool), c.policy != ""
	}
	i := slices.IndexFunc(own.rules, func(r rule) bool { return r.handle == m.handle })
	if i < 0 {
		return locate.Object{}, false
	}
	o := c.object(s.tool, c.rules[i])
	o.Text += fmt.Sprintf(" (handle %d)", m.handle)
	return o, true
}

func (c savedChain) object(tool string, r savedRule) locate.Object {
	o := locate.Object{Kind: locate.Rule, Text: fmt.Sprintf("%s %s %s: %s", tool, c.table, c.name, shorten(r.text))}
	o.Fix = tool + " -t " + c.table + " -D"
	for _, w := range r.words[1:] {
		o.Fix += " " + shellQuote(w)
	}
	return o
}

func (c savedChain) policyObject(tool string) locate.Object {
	o := locate.Object{Kind: locate.Rule, Usual: "policy ACCEPT"}
	o.Text = fmt.Sprintf("%s %s %s: policy %s", tool, c.table, c.name, c.policy)
	o.Fix = tool
	if c.table != "filter" {
		o.Fix += " -t " + c.table
	}
	o.Fix += " -P " + c.name + " ACCEPT"
	return o
}

// save returns what the tool says of a table, which it is asked once.
func (b *book) save(p place, f family) saved {
	key := familyName(p.family) + " " + p.table
	if s, ok := b.saved[key]; ok {
		return s
	}
	var s saved
	for _, tool := range []string{f.tool, f.tool + "-nft"} {
		if !isVariant(tool, true) {
			continue
		}
		out, err := exec.Command(tool+"-save", saveArguments(f.tool, p.table)...).Output()
		if err == nil {
			s = saved{tool, slices.DeleteFunc(parseSave(string(out)), func(c savedChain) bool { return c.table != p.table })}
			break
		}
	}
	b.saved[key] = s
	return s
}

// saveArguments returns the arguments of a program *tables-save. That of arptables has none.
func saveArguments(tool, table string) []string {
	if tool == "arptables" {
		return nil
	}
	return []string{"-t", table}
}

// isVariant reports whether a tool is there, and keeps its rules in nf_tables or, if nft is false, in legacy tables.
func isVariant(tool string, nft bool) bool {
	out, err := exec.Command(tool, "-V").Output()
	return err == nil && bytes.Contains(out, []byte("nf_tables")) == nft
}

var counters = regexp.MustCompile(`^\[(\d+):\d+\]$`)

// parseSave reads the output of iptables-save and its relatives, with or without counters.
func parseSave(out string) []savedChain {
	var chains []savedChain
	table := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		words := savedrule.Words(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":") && len(words) >= 2:
			c := savedChain{table: table, name: words[0][1:], policy: strings.Trim(words[1], "-")}
			if len(words) > 2 {
				c.packets = countOf(words[2])
			}
			chains = append(chains, c)
		default:
			addRule(chains, table, line, words)
		}
	}
	return chains
}

func addRule(chains []savedChain, table, line string, words []string) {
	var r savedRule
	if len(words) > 0 && counters.MatchString(words[0]) {
		r.packets = countOf(words[0])
		line, words = strings.TrimSpace(line[len(words[0]):]), words[1:]
	}
	if len(words) < 2 || words[0] != "-A" {
		return
	}
	i := slices.IndexFunc(chains, func(c savedChain) bool { return c.table == table && c.name == words[1] })
	if i >= 0 {
		r.text, r.words = line, words
		chains[i].rules = append(chains[i].rules, r)
	}
}

func countOf(word string) uint64 {
	found := counters.FindStringSubmatch(word)
	if found == nil {
		return 0
	}
	n, _ := strconv.ParseUint(found[1], 10, 64)
	return n
}
