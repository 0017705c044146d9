package ruletrace

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/internal/savedrule"
	"github.com/twill-net/twill/netstate/nfnl"
)

// saved is what a tool has printed of one table.
type saved struct {
	tool   string // which reads, and deletes: iptables
	chains []savedrule.Chain
}

func (s saved) chain(name string) *savedrule.Chain {
	i := slices.IndexFunc(s.chains, func(c savedrule.Chain) bool { return c.Name == name })
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

var families = map[nftables.TableFamily]family{
	nftables.TableFamilyIPv4:   {"iptables", rules.Tables},
	nftables.TableFamilyIPv6:   {"ip6tables", rules.Tables},
	nftables.TableFamilyBridge: {"ebtables", []string{"filter", "nat", "broute"}},
	nftables.TableFamilyARP:    {"arptables", []string{"filter"}},
}

// savedObject describes a rule or policy as the tool prints it that has made it, if it is one of iptables' kind: the
// tool's n-th rule of a chain is nf_tables' n-th.
func (b *book) savedObject(m *met) (locate.Object, bool) {
	f := families[m.Family]
	if !slices.Contains(f.tables, m.Table) {
		return locate.Object{}, false
	}
	s := b.save(m.Place, f)
	c, own := s.chain(m.Chain), b.set.chains[m.Place]
	if c == nil || own == nil || len(c.Rules) != len(own.rules) {
		return locate.Object{}, false
	}
	if m.kind == unix.NFT_TRACETYPE_POLICY {
		return policyObject(s.tool, *c), c.Policy != ""
	}
	i := slices.IndexFunc(own.rules, func(r rule) bool { return r.handle == m.handle })
	if i < 0 {
		return locate.Object{}, false
	}
	o := ruleObject(s.tool, *c, c.Rules[i])
	o.Text += fmt.Sprintf(" (handle %d)", m.handle)
	o.Target = m.target
	return o, true
}

func ruleObject(tool string, c savedrule.Chain, r savedrule.Rule) locate.Object {
	return locate.Object{Kind: locate.Rule, Text: fmt.Sprintf("%s %s %s: %s", tool, c.Table, c.Name, shorten(r.Text)),
		Fix: r.Delete(tool, c.Table), Table: c.Table, Chain: c.Name, Comment: r.Comment()}
}

func policyObject(tool string, c savedrule.Chain) locate.Object {
	o := locate.Object{Kind: locate.Rule, Usual: "policy ACCEPT", Table: c.Table, Chain: c.Name}
	o.Text = fmt.Sprintf("%s %s %s: policy %s", tool, c.Table, c.Name, c.Policy)
	o.Fix = tool
	if c.Table != "filter" {
		o.Fix += " -t " + c.Table
	}
	o.Fix += " -P " + c.Name + " ACCEPT"
	return o
}

// save returns what the tool says of a table, which it is asked once.
func (b *book) save(p nfnl.Place, f family) saved {
	key := nfnl.FamilyName(p.Family) + " " + p.Table
	if s, ok := b.saved[key]; ok {
		return s
	}
	var s saved
	for _, tool := range []string{f.tool, f.tool + "-nft"} {
		if !isVariant(tool, true) {
			continue
		}
		out, err := exec.Command(tool+"-save", saveArguments(f.tool, p.Table)...).Output()
		if err == nil {
			s = saved{tool, slices.DeleteFunc(savedrule.Parse(string(out)), func(c savedrule.Chain) bool { return c.Table != p.Table })}
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
