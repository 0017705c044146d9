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

// chainRef names one chain of the iptables mode.
type chainRef struct {
	variant variant
	family  netstate.Family
	role    netstate.Role
}

// listing is a chain as iptables -S listed it when the kernel's rules had the fingerprint.
type listing struct {
	fingerprint [sha256.Size]byte
	chain       netstate.Chain
}

// observed is a chain of the iptables mode, and where it is.
type observed struct {
	variant variant
	chain   netstate.Chain
}

// readCompat returns the iptables mode's chains in nf_tables. iptables-nft is run only for those that have changed.
func (f *Firewall) readCompat() ([]observed, error) {
	var all []observed
	for _, family := range netstate.Families {
		for _, role := range roles {
			ref := chainRef{overNF, family, role}
			fingerprint, exists, err := f.fingerprint(ref)
			if err != nil {
				return nil, err
			}
			if !exists {
				delete(f.listings, ref)
				continue
			}
			c, err := f.list(ref, fingerprint)
			if err != nil {
				return nil, err
			}
			all = append(all, observed{overNF, c})
		}
	}
	return all, nil
}

// fingerprint returns a hash of the rules, without counters, of a chain in nf_tables and of the chain that jumps to
// it, and whether the chain exists. A jump cannot outlive its chain.
func (f *Firewall) fingerprint(ref chainRef) (sum [sha256.Size]byte, exists bool, err error) {
	s, family := siteOf(ref.role), byte(tableFamily(ref.family))
	header, err := f.nf.chain(family, s.table, s.chain)
	if err != nil || header == nil {
		return sum, false, err
	}
	h := sha256.New()
	for _, chain := range []string{s.chain, s.base} {
		rules, err := f.nf.rules(family, s.table, chain)
		if err != nil {
			return sum, false, err
		}
		fmt.Fprintln(h, chain)
		for _, r := range rules {
			fmt.Fprintln(h, r.handle, r.comment)
			for _, e := range r.exprs {
				if e.name != "counter" {
					fmt.Fprintf(h, "%s %x\n", e.name, e.data)
				}
			}
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), true, nil
}

// list returns a chain, from memory if its fingerprint is the same.
func (f *Firewall) list(ref chainRef, fingerprint [sha256.Size]byte) (netstate.Chain, error) {
	if l, ok := f.listings[ref]; ok && l.fingerprint == fingerprint {
		return l.chain, nil
	}
	c, err := f.iptables.command(ref.variant, ref.family)
	if err != nil {
		return netstate.Chain{
			Mode: netstate.IPTables, Family: ref.family, Role: ref.role, Extra: "unread, no " + ref.variant.String(),
		}, nil
	}
	chain, exists, err := c.read(ref.family, ref.role)
	if err == nil && !exists {
		err = errMoved
	}
	if err == nil {
		f.listings[ref] = listing{fingerprint, chain}
	}
	return chain, err
}

// readLegacy returns the iptables mode's chains in the legacy tables.
func (r *runner) readLegacy() ([]observed, error) {
	var all []observed
	for _, family := range netstate.Families {
		tables, err := legacyTables(family)
		if err != nil {
			return nil, err
		}
		for _, role := range roles {
			c, err := r.command(legacy, family)
			if err != nil || !slices.Contains(tables, siteOf(role).table) {
				continue // without the binary nothing can be read
			}
			chain, exists, err := c.read(family, role)
			if err != nil {
				return nil, err
			}
			if exists {
				all = append(all, observed{legacy, chain})
			}
		}
	}
	return all, nil
}

// read returns the chain of a role, and whether it exists.
func (c command) read(family netstate.Family, role netstate.Role) (netstate.Chain, bool, error) {
	chain := netstate.Chain{Mode: netstate.IPTables, Family: family, Role: role}
	s := siteOf(role)
	own, err := c.list(s.table, s.chain)
	if err != nil || own == nil {
		return chain, false, err
	}
	base, err := c.list(s.table, s.base)
	if err != nil {
		return chain, false, err
	}
	var rules []netstate.Rule
	for _, l := range own {
		if words := split(l); len(words) >= 2 && words[0] == "-A" {
			rules = append(rules, parse(words[2:]))
		}
	}
	setRules(&chain, rules)
	all, _ := jumpRules(base, s)
	chain.Place = placeOf(all, 1)
	return chain, true, nil
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
func (f *Firewall) putIPTables(chain netstate.Chain) error {
	v, s := f.iptables.variant(), siteOf(chain.Role)
	c, err := f.iptables.command(v, chain.Family)
	if err != nil {
		return err
	}
	base, err := c.list(s.table, s.base)
	if err != nil {
		return err
	}
	rules, old := jumpRules(base, s)
	lines := []string{":" + s.chain + " - [0:0]"} // makes the chain or empties it
	for _, r := range rulesOf(chain) {
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
	if i, end := slot(chain.Place, rules); !end {
		at = fmt.Sprintf("-I %s %d", s.base, i+1)
	}
	lines = append(lines, fmt.Sprintf("%s -m comment --comment %q -j %s", at, placeComment(chain.Place), s.chain))
	if err := c.restore(s.table, lines); err != nil {
		return err
	}
	return f.deleteFrom(chainRef{1 - v, chain.Family, chain.Role})
}

// deleteIPTables removes one chain of the iptables mode and its jumps, from both variants.
func (f *Firewall) deleteIPTables(c netstate.Chain) error {
	return errors.Join(
		f.deleteFrom(chainRef{overNF, c.Family, c.Role}),
		f.deleteFrom(chainRef{legacy, c.Family, c.Role}),
	)
}

// deleteFrom removes a chain and its jumps, if it exists.
func (f *Firewall) deleteFrom(ref chainRef) error {
	exists, err := f.exists(ref)
	if err != nil || !exists {
		return err
	}
	c, err := f.iptables.command(ref.variant, ref.family)
	if errors.Is(err, exec.ErrNotFound) && ref.variant == overNF {
		return f.deleteRaw(ref)
	}
	if err != nil {
		return err
	}
	s := siteOf(ref.role)
	base, err := c.list(s.table, s.base)
	if err != nil {
		return err
	}
	lines := []string{":" + s.chain + " - [0:0]"} // so that it is there and empty
	_, old := jumpRules(base, s)
	for _, j := range old {
		lines = append(lines, "-D "+j)
	}
	return c.restore(s.table, append(lines, "-X "+s.chain))
}

func (f *Firewall) exists(ref chainRef) (bool, error) {
	s := siteOf(ref.role)
	if ref.variant == overNF {
		header, err := f.nf.chain(byte(tableFamily(ref.family)), s.table, s.chain)
		if noNFTables(err) {
			return false, nil
		}
		return header != nil, err
	}
	tables, err := legacyTables(ref.family)
	if err != nil || !slices.Contains(tables, s.table) {
		return false, err
	}
	c, err := f.iptables.command(legacy, ref.family)
	if err != nil {
		return false, nil // readLegacy has not seen it either
	}
	lines, err := c.list(s.table, s.chain)
	return lines != nil, err
}

// deleteRaw removes an iptables-nft chain and its jumps without a binary.
func (f *Firewall) deleteRaw(ref chainRef) error {
	s := siteOf(ref.role)
	table := &nftables.Table{Name: s.table, Family: tableFamily(ref.family)}
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
	tx.FlushChain(chain)
	tx.DelChain(chain)
	return tx.Flush()
}
