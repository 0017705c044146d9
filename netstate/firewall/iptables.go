package firewall

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/twill-net/twill/netstate"
)

// site is where a role's chain lives in iptables. The comment is the one that flannel gives to its jump, so that
// a flannel that comes back finds the jump instead of making a second one.
type site struct{ table, base, chain, comment string }

func siteOf(role netstate.Role) site {
	if role == netstate.Postrouting {
		return site{"nat", "POSTROUTING", "FLANNEL-POSTRTG", "flanneld masq"}
	}
	return site{"filter", "FORWARD", "FLANNEL-FWD", "flanneld forward"}
}

// place is one chain of one variant of iptables.
type place struct {
	variant variant
	ipv6    bool
	role    netstate.Role
}

// list is what iptables -S said when the kernel's bytes had the fingerprint.
type list struct {
	fingerprint [sha256.Size]byte
	chain       netstate.Chain
}

// found is a chain of the iptables mode, and where it is.
type found struct {
	variant variant
	chain   netstate.Chain
}

// readCompat finds the iptables mode's chains in nf_tables. iptables-nft is run only for chains that are there
// and have moved.
func (f *Firewall) readCompat() ([]found, error) {
	var all []found
	for _, ipv6 := range families {
		for _, role := range roles {
			p := place{overNF, ipv6, role}
			fingerprint, exists, err := f.fingerprintNF(p)
			if err != nil {
				return nil, err
			}
			if !exists {
				delete(f.lists, p)
				continue
			}
			c, err := f.list(p, fingerprint)
			if err != nil {
				return nil, err
			}
			all = append(all, found{overNF, c})
		}
	}
	return all, nil
}

// fingerprintNF is a hash over the rules, counters left out, of a place's chain and of the chain that jumps to
// it, and whether there is such a chain or jump.
func (f *Firewall) fingerprintNF(p place) (sum [sha256.Size]byte, exists bool, err error) {
	s, fam := siteOf(p.role), byte(family(p.ipv6))
	header, err := f.nf.chain(fam, s.table, s.chain)
	if err != nil {
		return sum, false, err
	}
	h := sha256.New()
	exists = header != nil
	for _, chain := range []string{s.chain, s.base} {
		rules, err := f.nf.rules(fam, s.table, chain)
		if err != nil {
			return sum, false, err
		}
		fmt.Fprintln(h, chain, header != nil)
		for _, r := range rules {
			exists = exists || r.jumpTo() == s.chain
			fmt.Fprintln(h, r.handle, r.comment)
			for _, e := range r.exprs {
				if e.name != "counter" {
					fmt.Fprintf(h, "%s %x\n", e.name, e.data)
				}
			}
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), exists, nil
}

// list is the chain at p, from memory if its fingerprint is the same.
func (f *Firewall) list(p place, fingerprint [sha256.Size]byte) (netstate.Chain, error) {
	if l, ok := f.lists[p]; ok && l.fingerprint == fingerprint {
		return l.chain, nil
	}
	c := netstate.Chain{Mode: netstate.IPTables, IPv6: p.ipv6, Role: p.role}
	t, err := f.tools.get(p.variant, p.ipv6)
	if err != nil {
		c.Extra = "unread, no " + p.variant.String()
		return c, nil
	}
	s := siteOf(p.role)
	lines, err := t.list(s.table, s.chain)
	if err != nil {
		return c, err
	}
	base, err := t.list(s.table, s.base)
	if err != nil {
		return c, err
	}
	if lines == nil {
		c.Extra = "missing"
	}
	setRules(&c, parseAll(lines))
	c.First = jumpsFirst(base, s)
	f.lists[p] = list{fingerprint, c}
	return c, nil
}

func parseAll(lines []string) []netstate.Rule {
	var rules []netstate.Rule
	for _, l := range lines {
		if words := split(l); len(words) >= 2 && words[0] == "-A" {
			rules = append(rules, parse(words[2:]))
		}
	}
	return rules
}

// jumpsFirst says whether the only jump to the site's chain is the base chain's first rule and has no condition.
func jumpsFirst(base []string, s site) bool {
	rules := slices.DeleteFunc(slices.Clone(base), func(l string) bool { return !strings.HasPrefix(l, "-A ") })
	if len(rules) == 0 || len(jumps(base, s)) != 1 {
		return false
	}
	r := parse(split(rules[0])[2:])
	bare := netstate.Rule{Extra: "-j " + s.chain}
	commented := netstate.Rule{Extra: "-m comment --comment " + quote(s.comment) + " -j " + s.chain}
	return r == bare || r == commented
}

// jumps are the rules of the base chain that lead to the site's chain, whoever wrote them.
func jumps(base []string, s site) []string {
	var rules []string
	for _, l := range base {
		words := split(l)
		if n := len(words); n > 3 && (words[n-2] == "-j" || words[n-2] == "-g") && words[n-1] == s.chain {
			rules = append(rules, strings.TrimPrefix(l, "-A "))
		}
	}
	return rules
}

// putIPTables writes one chain of the iptables mode: its rules and its jump in one transaction, so that there
// is no moment in which pods are masqueraded towards pods.
func (f *Firewall) putIPTables(c netstate.Chain) error {
	p := place{f.tools.variant(), c.IPv6, c.Role}
	t, err := f.tools.get(p.variant, c.IPv6)
	if err != nil {
		return err
	}
	s := siteOf(c.Role)
	base, err := t.list(s.table, s.base)
	if err != nil {
		return err
	}
	lines := []string{":" + s.chain + " - [0:0]"} // makes the chain or empties it
	for _, r := range rulesOf(c) {
		words, err := render(r)
		if err != nil {
			return err
		}
		lines = append(lines, "-A "+s.chain+" "+words)
	}
	for _, j := range jumps(base, s) {
		lines = append(lines, "-D "+j)
	}
	lines = append(lines, fmt.Sprintf("-I %s 1 -m comment --comment %q -j %s", s.base, s.comment, s.chain))
	if err := t.restore(s.table, lines); err != nil {
		return err
	}
	return f.deleteFrom(place{1 - p.variant, c.IPv6, c.Role})
}

// deleteIPTables removes one chain of the iptables mode and its jumps, from both variants.
func (f *Firewall) deleteIPTables(c netstate.Chain) error {
	return errors.Join(
		f.deleteFrom(place{overNF, c.IPv6, c.Role}),
		f.deleteFrom(place{legacy, c.IPv6, c.Role}),
	)
}

// deleteFrom removes the chain and jumps at p, if there are any.
func (f *Firewall) deleteFrom(p place) error {
	exists, err := f.exists(p)
	if err != nil || !exists {
		return err
	}
	t, err := f.tools.get(p.variant, p.ipv6)
	if errors.Is(err, exec.ErrNotFound) && p.variant == overNF {
		return f.deleteRaw(p)
	}
	if err != nil {
		return err
	}
	s := siteOf(p.role)
	base, err := t.list(s.table, s.base)
	if err != nil {
		return err
	}
	lines := []string{":" + s.chain + " - [0:0]"} // so that it is there and empty
	for _, j := range jumps(base, s) {
		lines = append(lines, "-D "+j)
	}
	return t.restore(s.table, append(lines, "-X "+s.chain))
}

func (f *Firewall) exists(p place) (bool, error) {
	if p.variant == legacy {
		_, exists, err := fingerprintLegacy(p)
		return exists, err
	}
	_, exists, err := f.fingerprintNF(p)
	if noNFTables(err) {
		return false, nil
	}
	return exists, err
}

// deleteRaw removes an iptables-nft chain and its jumps without a binary.
func (f *Firewall) deleteRaw(p place) error {
	s := siteOf(p.role)
	table := &nftables.Table{Name: s.table, Family: family(p.ipv6)}
	chain, base := &nftables.Chain{Table: table, Name: s.chain}, &nftables.Chain{Table: table, Name: s.base}
	rules, err := f.nf.rules(byte(table.Family), s.table, s.base)
	if err != nil {
		return err
	}
	tx, err := nftables.New()
	if err != nil {
		return err
	}
	if err := deleteRules(tx, base, rules, func(r rawRule) bool { return r.jumpTo() == s.chain }); err != nil {
		return err
	}
	header, err := f.nf.chain(byte(table.Family), s.table, s.chain)
	if err != nil {
		return err
	}
	if header != nil {
		tx.FlushChain(chain)
		tx.DelChain(chain)
	}
	return tx.Flush()
}
