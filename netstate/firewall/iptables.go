package firewall

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/google/nftables"

	"github.com/twill-net/twill/netstate"
)

// site is where a role's chain lives in iptables.
type site struct{ table, base, chain string }

func siteOf(role netstate.Role) site {
	switch role {
	case netstate.Postrouting:
		return site{"nat", "POSTROUTING", "FLANNEL-POSTRTG"}
	case netstate.GuardInput: // in mangle an accept of others, in filter, does not overrule a drop
		return site{"mangle", "INPUT", "TWILL-INPUT"}
	case netstate.GuardForward:
		return site{"mangle", "FORWARD", "TWILL-FORWARD"}
	}
	return site{"filter", "FORWARD", "FLANNEL-FWD"}
}

// place is one chain of one variant of iptables.
type place struct {
	variant variant
	family  netstate.Family
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
	for _, family := range netstate.Families {
		for _, role := range roles {
			p := place{overNF, family, role}
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
	s, fam := siteOf(p.role), byte(tableFamily(p.family))
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
	c := netstate.Chain{Mode: netstate.IPTables, Family: p.family, Role: p.role}
	t, err := f.tools.get(p.variant, p.family)
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
	rules, _ := jumpRules(base, s)
	c.Place = placeOf(rules, 1)
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

// jumpRules are the rules of a base chain as "iptables -S" lists them, and of these the ones that lead to the
// site's chain, whoever wrote them.
func jumpRules(lines []string, s site) (base []baseRule, jumps []string) {
	for _, l := range lines {
		words := split(l)
		if len(words) < 3 || words[0] != "-A" {
			continue
		}
		r := baseRule{}
		words = words[2:]
		if n := len(words); n >= 2 && (words[n-2] == "-j" || words[n-2] == "-g") && words[n-1] == s.chain {
			r.ours = true
			jumps = append(jumps, strings.TrimPrefix(l, "-A "))
		}
		if len(words) > 4 && words[0] == "-m" && words[1] == "comment" && words[2] == "--comment" {
			r.comment, words = words[3], words[4:]
		}
		r.conditional = len(words) < 2 || words[0] != "-j"
		r.drops = !r.conditional && (words[1] == "DROP" || words[1] == "REJECT")
		base = append(base, r)
	}
	return base, jumps
}

// putIPTables writes one chain of the iptables mode: its rules and its jump in one transaction, so that there
// is no moment in which pods are masqueraded towards pods.
func (f *Firewall) putIPTables(c netstate.Chain) error {
	p := place{f.tools.variant(), c.Family, c.Role}
	t, err := f.tools.get(p.variant, c.Family)
	if err != nil {
		return err
	}
	s := siteOf(c.Role)
	base, err := t.list(s.table, s.base)
	if err != nil {
		return err
	}
	rules, old := jumpRules(base, s)
	lines := []string{":" + s.chain + " - [0:0]"} // makes the chain or empties it
	for _, r := range rulesOf(c) {
		words, err := render(r)
		if err != nil {
			return err
		}
		lines = append(lines, "-A "+s.chain+" "+words)
	}
	for _, j := range old {
		lines = append(lines, "-D "+j)
	}
	at := "-A " + s.base
	if i, end := slot(c.Place, rules); !end {
		at = fmt.Sprintf("-I %s %d", s.base, i+1)
	}
	lines = append(lines, fmt.Sprintf("%s -m comment --comment %q -j %s", at, placeComment(c.Place), s.chain))
	if err := t.restore(s.table, lines); err != nil {
		return err
	}
	return f.deleteFrom(place{1 - p.variant, c.Family, c.Role})
}

// deleteIPTables removes one chain of the iptables mode and its jumps, from both variants.
func (f *Firewall) deleteIPTables(c netstate.Chain) error {
	return errors.Join(
		f.deleteFrom(place{overNF, c.Family, c.Role}),
		f.deleteFrom(place{legacy, c.Family, c.Role}),
	)
}

// deleteFrom removes the chain and jumps at p, if there are any.
func (f *Firewall) deleteFrom(p place) error {
	exists, err := f.exists(p)
	if err != nil || !exists {
		return err
	}
	t, err := f.tools.get(p.variant, p.family)
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
	_, old := jumpRules(base, s)
	for _, j := range old {
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
	table := &nftables.Table{Name: s.table, Family: tableFamily(p.family)}
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
