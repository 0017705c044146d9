package firewall

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/twill-net/twill/netstate"
)

// site is where a role's chain lives in iptables: its table, the chain that jumps to it, and its own name.
type site struct{ table, base, chain string }

// sites are those of all roles. The guards drop in mangle, where no accept of others, in filter, comes first.
var sites = [...]site{
	netstate.Postrouting:  {"nat", "POSTROUTING", "FLANNEL-POSTRTG"},
	netstate.Forward:      {"filter", "FORWARD", "FLANNEL-FWD"},
	netstate.GuardInput:   {"mangle", "INPUT", "TWILL-INPUT"},
	netstate.GuardForward: {"mangle", "FORWARD", "TWILL-FORWARD"},
}

// listing is a chain as iptables-nft listed it when the kernel's rules had the fingerprint.
type listing struct {
	fingerprint string
	chain       netstate.Chain
}

// readCompat returns the iptables mode's chains in nf_tables. iptables-nft is run only for those that have changed.
func (f *Firewall) readCompat(r *reader) []netstate.Chain {
	var chains []netstate.Chain
	listings := map[netstate.Key]listing{}
	for _, family := range netstate.Families {
		for _, role := range roles {
			fingerprint, exists := r.fingerprint(family, sites[role])
			if !exists || r.err != nil {
				continue
			}
			c := netstate.Chain{Mode: netstate.IPTables, Family: family, Role: role}
			l := f.listings[c.Key()]
			if l.fingerprint != fingerprint {
				c, r.err = f.list(c)
				l = listing{fingerprint, c}
			}
			listings[c.Key()] = l
			chains = append(chains, l.chain)
		}
	}
	if r.err == nil {
		f.listings = listings
	}
	return chains
}

// fingerprint returns the rules, without counters, of a chain in nf_tables and of the chain that jumps to it, and
// whether the chain exists. A jump cannot outlive its chain.
func (r *reader) fingerprint(family netstate.Family, s site) (text string, exists bool) {
	if r.chain(family, s.table, s.chain) == nil {
		return "", false
	}
	own := r.rules(family, s.table, s.chain)
	for _, rule := range slices.Concat(own, r.rules(family, s.table, s.base)) {
		rule.exprs = slices.DeleteFunc(rule.exprs, func(e rawExpr) bool { return e.name == "counter" })
		text += fmt.Sprintln(rule)
	}
	return fmt.Sprintln(len(own), text), true
}

// list runs iptables-nft for an existing chain.
func (f *Firewall) list(c netstate.Chain) (netstate.Chain, error) {
	ipt, err := f.iptables.command(nft, c.Family)
	if err != nil {
		c.Extra = "unread, no iptables-nft"
		return c, nil
	}
	exists, err := ipt.read(&c)
	if err == nil && !exists {
		err = errMoved
	}
	return c, err
}

// readLegacy returns the iptables mode's chains in the legacy tables.
func (r *runner) readLegacy() ([]netstate.Chain, error) {
	var chains []netstate.Chain
	tables, err := r.legacyTables()
	for _, t := range tables {
		for _, role := range roles {
			c := netstate.Chain{Mode: netstate.IPTables, Family: t.family, Role: role}
			if sites[role].table != t.name {
				continue
			}
			exists, err := t.read(&c)
			if err != nil {
				return nil, err
			}
			if exists {
				chains = append(chains, c)
			}
		}
	}
	return chains, err
}

// read sets the rules and the place of a chain, and reports whether it exists.
func (c command) read(chain *netstate.Chain) (bool, error) {
	s := sites[chain.Role]
	own, err := c.list(s.table, s.chain)
	if err != nil || own == nil {
		return false, err
	}
	base, err := c.list(s.table, s.base)
	if err != nil {
		return false, err
	}
	var rules []netstate.Rule
	for _, l := range own {
		if words := split(l); len(words) >= 2 && words[0] == "-A" {
			rules = append(rules, parse(words[2:]))
		}
	}
	setRules(chain, rules)
	all, _ := jumpRules(base, s)
	chain.Place = placeOf(all, 1)
	return true, nil
}

// jumpRules parses a base chain as "iptables -S" lists it. It returns the rules, and the commands that delete those
// which jump to the site's chain, whoever wrote them.
func jumpRules(lines []string, s site) (base []baseRule, deletes []string) {
	for _, l := range lines {
		words := split(l)
		if len(words) < 3 || words[0] != "-A" {
			continue
		}
		r := baseRule{}
		words = words[2:]
		if n := len(words); n >= 2 && (words[n-2] == "-j" || words[n-2] == "-g") && words[n-1] == s.chain {
			r.ours = true
			deletes = append(deletes, "-D"+strings.TrimPrefix(l, "-A"))
		}
		if len(words) > 4 && words[0] == "-m" && words[1] == "comment" && words[2] == "--comment" {
			r.comment, words = words[3], words[4:]
		}
		r.conditional = len(words) < 2 || words[0] != "-j"
		r.drops = !r.conditional && (words[1] == "DROP" || words[1] == "REJECT")
		base = append(base, r)
	}
	return base, deletes
}

// putIPTables writes one chain of the iptables mode: its rules and its jump in one transaction, so that there
// is no moment in which pods are masqueraded towards pods.
func (f *Firewall) putIPTables(chain netstate.Chain) error {
	v, s := f.iptables.variant(), sites[chain.Role]
	c, err := f.iptables.command(v, chain.Family)
	if err != nil {
		return err
	}
	base, err := c.list(s.table, s.base)
	if err != nil {
		return err
	}
	rules, old := jumpRules(base, s)
	var lines []string
	for _, r := range rulesOf(chain) {
		words, err := render(r)
		if err != nil {
			return err
		}
		lines = append(lines, "-A "+s.chain+" "+words)
	}
	at := "-A " + s.base
	if i, end := slot(chain.Place, rules); !end {
		at = fmt.Sprintf("-I %s %d", s.base, i+1)
	}
	jump := fmt.Sprintf("%s -m comment --comment %q -j %s", at, placeComment(chain.Place), s.chain)
	if err := c.restore(s, slices.Concat(lines, old, []string{jump})); err != nil {
		return err
	}
	if v == legacy {
		return f.deleteCompat(chain)
	}
	return f.deleteLegacy(chain)
}

// deleteCompat removes a chain of the iptables mode and its jumps from nf_tables, for which no binary is needed.
func (f *Firewall) deleteCompat(c netstate.Chain) error {
	s := sites[c.Role]
	tx := f.transaction()
	if header := tx.chain(c.Family, s.table, s.chain); noNFTables(tx.err) || tx.err == nil && header == nil {
		return nil
	}
	table := &nftables.Table{Name: s.table, Family: tableFamily(c.Family)}
	base, chain := &nftables.Chain{Table: table, Name: s.base}, &nftables.Chain{Table: table, Name: s.chain}
	rules := tx.rules(c.Family, s.table, s.base)
	tx.deleteRules(base, rules, func(r rawRule) bool { return r.jumpTo() == s.chain })
	tx.FlushChain(chain)
	tx.DelChain(chain)
	return tx.commit()
}

// deleteLegacy removes a chain of the iptables mode and its jumps from the legacy tables.
func (f *Firewall) deleteLegacy(c netstate.Chain) error {
	s := sites[c.Role]
	tables, err := f.iptables.legacyTables()
	i := slices.IndexFunc(tables, func(t legacyTable) bool { return t.family == c.Family && t.name == s.table })
	if err != nil || i < 0 {
		return err
	}
	ipt := tables[i].command
	own, err := ipt.list(s.table, s.chain)
	if err != nil || own == nil {
		return err
	}
	base, err := ipt.list(s.table, s.base)
	if err != nil {
		return err
	}
	_, old := jumpRules(base, s)
	return ipt.restore(s, append(old, "-X "+s.chain))
}
