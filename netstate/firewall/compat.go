package firewall

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// listing is the rules of a chain as iptables-nft listed them when the kernel's had the fingerprint.
type listing struct {
	fingerprint string
	chain       netstate.Chain // with rules and Extra alone
}

// readCompat reads a chain of the iptables mode in nf_tables, and reports whether any part of it exists. iptables-nft is
// run only if the chain has changed.
func (f *Firewall) readCompat(
	r *reader, c *netstate.Chain, tables map[string]nfnl.Table, listings map[netstate.Key]listing,
) bool {
	s := sites[c.Role]
	table, exists := tables[s.table]
	if !exists {
		return false
	}
	base := compatBase(r.Rules(c.Family, s.table, s.base), s)
	if r.Chain(c.Family, s.table, s.chain) != nil {
		l := f.listed(r, *c)
		listings[c.Key()], *c = l, l.chain
	} else if slices.ContainsFunc(base, func(b baseRule) bool { return b.ours }) {
		c.Extra = "missing"
	} else {
		return false
	}
	if table.Dormant() {
		c.Extra = join(c.Extra, "dormant")
	}
	for _, name := range r.renamed(c.Family, s, base) {
		c.Extra = join(c.Extra, "also "+name)
	}
	c.Place = placeOf(base, 1)
	return true
}

// listed returns the listing of a chain that exists.
func (f *Firewall) listed(r *reader, c netstate.Chain) listing {
	s, text := sites[c.Role], ""
	for _, rule := range r.Rules(c.Family, s.table, s.chain) {
		rule.Exprs = slices.DeleteFunc(rule.Exprs, func(e nfnl.Expr) bool { return e.Name == "counter" })
		text += fmt.Sprintln(rule)
	}
	if l, ok := f.listings[c.Key()]; r.Err != nil || ok && l.fingerprint == text {
		return l
	}
	ipt, err := f.iptables.command(nft, c.Family)
	if err != nil {
		c.Extra = "unread, no iptables-nft"
		return listing{text, c}
	}
	lines, err := ipt.list(s.table, s.chain)
	if r.Err = err; lines == nil { // somebody wrote what iptables cannot print
		c.Extra = "unreadable"
	}
	parseRules(&c, lines)
	return listing{text, c}
}

// compatBase returns the rules of a site's base chain.
func compatBase(raw []nfnl.Rule, s site) []baseRule {
	var base []baseRule
	for _, r := range raw {
		b := baseRule{comment: r.Comment, target: jumpTo(r), drops: drops(r), handle: r.Handle}
		// The accepts of the nftables mode have our comment too.
		b.ours = b.target == s.chain || isMark(r.Comment) && (b.target != "" || s != sites[netstate.Forward])
		b.conditional = !b.drops && !jumpsAlways(r) || b.ours && b.target != s.chain
		base = append(base, b)
	}
	return base
}

// jumpsAlways reports whether the rule jumps with every packet.
func jumpsAlways(r nfnl.Rule) bool {
	jumps := false
	for _, e := range r.Exprs {
		_, isComment := e.XTComment()
		code, _ := e.Verdict().Uint32(unix.NFTA_VERDICT_CODE)
		switch {
		case e.Name == "counter" || isComment:
		case e.Name == "immediate" && int32(code) == unix.NFT_JUMP:
			jumps = true
		default:
			return false
		}
	}
	return jumps
}

// renamed returns the chains of ours under another name: a jump of ours leads there, and every rule has our mark.
func (r *reader) renamed(family netstate.Family, s site, base []baseRule) []string {
	var names []string
	for _, b := range base {
		if !b.ours || b.target == "" || b.target == s.chain || slices.Contains(names, b.target) {
			continue
		}
		rules := r.Rules(family, s.table, b.target)
		isForeign := func(r nfnl.Rule) bool { return !isMark(r.Comment) }
		if len(rules) > 0 && !slices.ContainsFunc(rules, isForeign) {
			names = append(names, b.target)
		}
	}
	return names
}

// putCompat writes one chain of the iptables mode with iptables-nft. Then it deletes, over netlink, jumps that are not
// in their place: iptables cannot name them if it cannot print the chain.
func (f *Firewall) putCompat(c command, chain netstate.Chain, lines []string) error {
	s, tx := sites[chain.Role], f.transaction()
	table, base := tx.Tables(chain.Family)[s.table], compatBase(tx.Rules(chain.Family, s.table, s.base), s)
	moved := placeOf(base, 1) != chain.Place
	if moved {
		lines = append(lines, jumpLine(chain, base))
	}
	if err := errors.Join(tx.Err, c.restore(s, lines)); err != nil {
		return err
	}
	return f.deleteRenamed(chain, base, func(tx *transaction) {
		if moved {
			tx.deleteJumps(chain, base)
		}
		if table.Dormant() {
			tx.AddTable(compatTable(chain))
		}
	})
}

// jumpLine returns the command that adds the jump to a chain in its place.
func jumpLine(chain netstate.Chain, base []baseRule) string {
	s := sites[chain.Role]
	add := "-A " + s.base
	if at, end := slot(chain.Place, base); !end {
		for i, b := range base { // at counts the rules of others
			if !b.ours && at == 0 {
				add = fmt.Sprintf("-I %s %d", s.base, i+1)
				break
			} else if !b.ours {
				at--
			}
		}
	}
	return fmt.Sprintf("%s -m comment --comment %q -j %s", add, placeComment(chain.Place), s.chain)
}

func compatTable(c netstate.Chain) *nftables.Table {
	return &nftables.Table{Name: sites[c.Role].table, Family: nfnl.TableFamily(c.Family)}
}

// deleteJumps deletes the rules of ours in a site's base chain.
func (tx *transaction) deleteJumps(c netstate.Chain, base []baseRule) {
	chain := &nftables.Chain{Table: compatTable(c), Name: sites[c.Role].base}
	for _, b := range base {
		if b.ours {
			tx.Err = errors.Join(tx.Err, tx.DelRule(&nftables.Rule{Table: chain.Table, Chain: chain, Handle: b.handle}))
		}
	}
}

// deleteRenamed deletes the chains of ours under other names to which jumps of ours lead, in one transaction with what
// deletes the jumps: without these nobody would know the chains. One to which a rule of somebody else leads too stays,
// empty.
func (f *Firewall) deleteRenamed(c netstate.Chain, base []baseRule, first func(*transaction)) error {
	try := func(whole bool) error {
		tx := f.transaction()
		first(tx)
		for _, name := range tx.renamed(c.Family, sites[c.Role], base) {
			chain := &nftables.Chain{Table: compatTable(c), Name: name}
			tx.FlushChain(chain)
			if whole {
				tx.DelChain(chain)
			}
		}
		return tx.commit()
	}
	err := try(true)
	if errors.Is(err, unix.EBUSY) {
		return try(false)
	}
	return err
}

// deleteCompat removes a chain of the iptables mode and its jumps from nf_tables, for which no binary is needed.
func (f *Firewall) deleteCompat(c netstate.Chain) error {
	s, tx := sites[c.Role], f.transaction()
	header := tx.Chain(c.Family, s.table, s.chain)
	base := compatBase(tx.Rules(c.Family, s.table, s.base), s)
	if nfnl.Unsupported(tx.Err) {
		return nil
	}
	if tx.Err != nil {
		return tx.Err
	}
	return f.deleteRenamed(c, base, func(tx *transaction) {
		tx.deleteJumps(c, base)
		if header != nil {
			chain := &nftables.Chain{Table: compatTable(c), Name: s.chain}
			tx.FlushChain(chain)
			tx.DelChain(chain)
		}
	})
}
