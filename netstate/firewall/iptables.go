package firewall

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twill-net/twill/internal/savedrule"
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
	netstate.GuardSource:  {}, // iptables cannot ask where the way back leads
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

// read sets the rules and the place of a chain in a legacy table, and reports whether it exists.
func (c command) read(chain *netstate.Chain) (bool, error) {
	s := sites[chain.Role]
	own, err := c.list(s.table, s.chain)
	if err != nil || own == nil {
		return false, err
	}
	lines, err := c.list(s.table, s.base)
	if err != nil {
		return false, err
	}
	base := legacyBase(lines, s)
	parseRules(chain, own)
	for _, name := range c.renamed(s, base) {
		chain.Extra = join(chain.Extra, "also "+name)
	}
	chain.Place = placeOf(base, 1)
	return true, nil
}

// parseRules sets the rules of a chain from the lines in which iptables -S prints it. A rule of ours has our mark.
func parseRules(chain *netstate.Chain, lines []string) {
	var rules []netstate.Rule
	for _, l := range lines {
		words := savedrule.Words(l)
		if len(words) < 2 || words[0] != "-A" {
			continue
		}
		rest, comment := cutComment(words[2:])
		if isMark(comment) {
			rules = append(rules, parse(rest))
			continue
		}
		r := parse(words[2:])
		r.Extra = strings.TrimSpace(r.Extra + " unmarked")
		rules = append(rules, r)
	}
	setRules(chain, rules)
}

// cutComment takes the comment out of the words of a rule.
func cutComment(words []string) (rest []string, comment string) {
	i := slices.Index(words, "--comment")
	if i < 2 || i+1 >= len(words) || words[i-2] != "-m" || words[i-1] != "comment" {
		return words, ""
	}
	return slices.Concat(words[:i-2], words[i+2:]), words[i+1]
}

// legacyBase returns the rules of a site's base chain from the lines in which iptables-legacy -S prints it.
func legacyBase(lines []string, s site) []baseRule {
	var base []baseRule
	for _, l := range lines {
		words := savedrule.Words(l)
		if len(words) < 3 || words[0] != "-A" {
			continue
		}
		var b baseRule
		b.line = strings.TrimPrefix(l, "-A")
		words, b.comment = cutComment(words[2:])
		if i := slices.IndexFunc(words, func(w string) bool { return w == "-j" || w == "-g" }); i >= 0 && i+1 < len(words) {
			b.target = words[i+1]
		}
		always := len(words) >= 2 && words[0] == "-j"
		b.ours = b.target == s.chain || isMark(b.comment)
		b.drops = always && (b.target == "DROP" || b.target == "REJECT")
		b.conditional = !always || b.ours && b.target != s.chain
		base = append(base, b)
	}
	return base
}

// renamed returns the chains of ours under another name in a legacy table: a jump of ours leads there, and every rule
// has our mark.
func (c command) renamed(s site, base []baseRule) []string {
	var names []string
	for _, b := range base {
		if !b.ours || b.target == s.chain || slices.Contains(names, b.target) {
			continue
		}
		lines, err := c.list(s.table, b.target) // nil if it is no chain
		isForeign := func(l string) bool {
			_, comment := cutComment(savedrule.Words(l))
			return strings.HasPrefix(l, "-A ") && !isMark(comment)
		}
		if err == nil && len(lines) > 1 && !slices.ContainsFunc(lines, isForeign) {
			names = append(names, b.target)
		}
	}
	return names
}

// deletes are the commands that delete the rules of ours.
func deletes(base []baseRule) []string {
	var lines []string
	for _, b := range base {
		if b.ours {
			lines = append(lines, "-D"+b.line)
		}
	}
	return lines
}

// putIPTables writes one chain of the iptables mode: its rules and its jump in one transaction, so that there
// is no moment in which pods are masqueraded towards pods.
func (f *Firewall) putIPTables(chain netstate.Chain) error {
	v, s := f.iptables.variant(), sites[chain.Role]
	c, err := f.iptables.command(v, chain.Family)
	if err != nil {
		return err
	}
	var lines []string
	for _, r := range rulesOf(chain) {
		words, err := render(r)
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("-A %s -m comment --comment %q %s", s.chain, placeComment(chain.Place), words))
	}
	if v == legacy {
		return errors.Join(putLegacy(c, chain, lines), f.deleteCompat(chain))
	}
	return errors.Join(f.putCompat(c, chain, lines), f.deleteLegacy(chain))
}

// putLegacy writes one chain of the iptables mode with iptables-legacy.
func putLegacy(c command, chain netstate.Chain, lines []string) error {
	s := sites[chain.Role]
	list, err := c.list(s.table, s.base)
	if err != nil {
		return err
	}
	base := legacyBase(list, s)
	if placeOf(base, 1) != chain.Place {
		others := slices.DeleteFunc(slices.Clone(base), func(b baseRule) bool { return b.ours })
		lines = slices.Concat(lines, deletes(base), []string{jumpLine(chain, others)})
	}
	renamed := c.renamed(s, base)
	if err := c.restore(s, lines); err != nil {
		return err
	}
	c.deleteRenamed(s, renamed)
	return nil
}

// deleteRenamed deletes chains of ours under other names. One to which a rule of somebody else leads too stays, empty.
func (c command) deleteRenamed(s site, names []string) {
	for _, name := range names {
		_ = c.ClearAndDeleteChain(s.table, name)
	}
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
	lines, err := ipt.list(s.table, s.base)
	if err != nil {
		return err
	}
	base := legacyBase(lines, s)
	renamed := ipt.renamed(s, base)
	if err := ipt.restore(s, append(deletes(base), "-X "+s.chain)); err != nil {
		return err
	}
	ipt.deleteRenamed(s, renamed)
	return nil
}
