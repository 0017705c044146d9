package firewall

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// nativeTable returns flannel's table for a family.
func nativeTable(family netstate.Family) *nftables.Table {
	return &nftables.Table{Name: "flannel-" + strings.ToLower(family.String()), Family: tableFamily(family)}
}

// nativeChain returns flannel's chain for a role.
func nativeChain(family netstate.Family, role netstate.Role) *nftables.Chain {
	policy := nftables.ChainPolicyAccept
	c := nftables.Chain{Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward}
	switch role {
	case netstate.Postrouting:
		c.Name, c.Type = "postrtg", nftables.ChainTypeNAT
		c.Hooknum, c.Priority = nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource
	case netstate.Forward:
		c.Name, c.Priority = "forward", nftables.ChainPriorityFilter
	case netstate.GuardInput:
		c.Name, c.Hooknum, c.Priority = "guard-input", nftables.ChainHookInput, nftables.ChainPriorityMangle
	case netstate.GuardForward:
		c.Name, c.Priority = "guard-forward", nftables.ChainPriorityMangle
	}
	c.Table, c.Policy = nativeTable(family), &policy
	return &c
}

// forwardChain returns the chain of iptables-nft in which another program may drop what we forward. An accept in a
// table of ours ends only our own base chain, so the accepts have to stand in that chain too.
func forwardChain(family netstate.Family) *nftables.Chain {
	return &nftables.Chain{Name: "FORWARD", Table: &nftables.Table{Name: "filter", Family: tableFamily(family)}}
}

// fits reports whether the chain that exists has the header of the one that we want.
func (c *rawChain) fits(want *nftables.Chain) bool {
	return c.kind == string(want.Type) && c.hook == uint32(*want.Hooknum) &&
		c.priority == uint32(*want.Priority) && c.policy == nfAccept && !c.device
}

// native returns one chain of the nftables mode, and whether any part of it exists.
func (r *reader) native(family netstate.Family, role netstate.Role) (netstate.Chain, bool) {
	c := netstate.Chain{Mode: netstate.NFTables, Family: family, Role: role}
	want := nativeChain(family, role)
	header := r.chain(family, want.Table.Name, want.Name)
	switch {
	case header == nil:
		c.Extra = "missing"
	case !header.fits(want):
		c.Extra = fmt.Sprintf("type %q hook %d priority %d policy %d", header.kind, header.hook,
			int32(header.priority), header.policy)
	}
	if r.dormant(family, want.Table.Name) {
		c.Extra = join(c.Extra, "dormant")
	}
	raw := r.rules(family, want.Table.Name, want.Name)
	setRules(&c, decodeAll(raw, family))
	if role != netstate.Forward {
		return c, header != nil
	}
	if len(raw) > 0 && raw[0].comment == placeComment(netstate.First) {
		c.Place = netstate.First // that was asked for; it counts where FORWARD is no base chain
	}
	accepts := r.setPlace(&c)
	return c, header != nil || accepts
}

func decodeAll(raw []rawRule, family netstate.Family) []netstate.Rule {
	var rules []netstate.Rule
	for _, r := range raw {
		rules = append(rules, decode(r, family))
	}
	return rules
}

// setPlace sets c.Place by our accepts in FORWARD if that is a base chain, and reports whether there are any.
func (r *reader) setPlace(c *netstate.Chain) bool {
	rules, base := r.forwardRules(c.Family)
	if !base {
		return false
	}
	ours := slices.DeleteFunc(slices.Clone(rules), func(r rawRule) bool { return !r.isAccept() })
	want := rulesOf(*c)
	c.Place = placeOf(baseRules(rules), len(want))
	if !slices.Equal(decodeAll(ours, c.Family), want) {
		c.Place = netstate.Misplaced
	}
	return len(ours) > 0
}

// isAccept reports whether r, of iptables-nft's FORWARD, is one of our accepts.
func (r rawRule) isAccept() bool {
	marks := []string{placeComment(netstate.Appended), placeComment(netstate.First), oldComment}
	return slices.Contains(marks, r.comment) && r.jumpTo() == ""
}

func baseRules(rules []rawRule) []baseRule {
	var base []baseRule
	for _, r := range rules {
		base = append(base, baseRule{ours: r.isAccept(), comment: r.comment, drops: r.drops()})
	}
	return base
}

// forwardRules returns the rules of FORWARD, and whether it is a base chain.
func (r *reader) forwardRules(family netstate.Family) (rules []rawRule, base bool) {
	header := r.chain(family, "filter", "FORWARD")
	return r.rules(family, "filter", "FORWARD"), header != nil && header.kind != ""
}

// transaction collects changes of nf_tables. They are made together or, after an error, not at all.
type transaction struct {
	nftables.Conn
	reader
}

func (f *Firewall) transaction() *transaction { return &transaction{reader: reader{nf: &f.nf}} }

func (tx *transaction) commit() error {
	if tx.err != nil {
		return tx.err
	}
	return tx.Flush()
}

// rule returns r as a rule of chain, with the comment of a place.
func (tx *transaction) rule(chain *nftables.Chain, r netstate.Rule, place netstate.Place) *nftables.Rule {
	exprs, err := encode(r)
	tx.err = errors.Join(tx.err, err)
	comment := userdata.AppendString(nil, userdata.TypeComment, placeComment(place))
	return &nftables.Rule{Table: chain.Table, Chain: chain, Exprs: exprs, UserData: comment}
}

// deleteRules deletes those rules of chain that match.
func (tx *transaction) deleteRules(chain *nftables.Chain, rules []rawRule, match func(rawRule) bool) {
	for _, r := range rules {
		if match(r) {
			err := tx.DelRule(&nftables.Rule{Table: chain.Table, Chain: chain, Handle: r.handle})
			tx.err = errors.Join(tx.err, err)
		}
	}
}

// putNative writes one chain of the nftables mode as one transaction.
func (f *Firewall) putNative(c netstate.Chain) error {
	tx := f.transaction()
	want := nativeChain(c.Family, c.Role)
	header := tx.chain(c.Family, want.Table.Name, want.Name)
	tx.AddTable(want.Table) // wakes it up if it is dormant
	if header != nil {
		tx.FlushChain(want)
	}
	if header != nil && !header.fits(want) {
		tx.DelChain(want) // type, hook and priority are fixed at creation
		header = nil
	}
	if header == nil {
		tx.AddChain(want)
	}
	for _, r := range rulesOf(c) {
		tx.AddRule(tx.rule(want, r, c.Place))
	}
	if c.Role == netstate.Forward {
		tx.putAccepts(c)
	}
	return tx.commit()
}

// putAccepts moves our accepts to their place in FORWARD, if there is such a base chain.
func (tx *transaction) putAccepts(c netstate.Chain) {
	rules, base := tx.forwardRules(c.Family)
	if !base {
		return
	}
	forward := forwardChain(c.Family)
	tx.deleteRules(forward, rules, rawRule.isAccept)
	others := slices.DeleteFunc(slices.Clone(rules), rawRule.isAccept)
	at, end := slot(c.Place, baseRules(rules))
	for _, r := range rulesOf(c) {
		rule := tx.rule(forward, r, c.Place)
		if end {
			tx.AddRule(rule)
		} else {
			rule.Position = others[at].handle // each is inserted right before that one
			tx.InsertRule(rule)
		}
	}
}

// deleteNative removes one chain of the nftables mode, our accepts in FORWARD, and with its last chain the table.
func (f *Firewall) deleteNative(c netstate.Chain) error {
	tx := f.transaction()
	last := true
	for _, role := range roles {
		chain := nativeChain(c.Family, role)
		switch exists := tx.chain(c.Family, chain.Table.Name, chain.Name) != nil; {
		case exists && role == c.Role:
			tx.FlushChain(chain)
			tx.DelChain(chain)
		case exists:
			last = false
		}
	}
	if last {
		tx.AddTable(nativeTable(c.Family)) // it may be gone
		tx.DelTable(nativeTable(c.Family))
	}
	if c.Role == netstate.Forward {
		c.Rules = [netstate.MaxRules]netstate.Rule{}
		tx.putAccepts(c)
	}
	return tx.commit()
}

// noNFTables reports whether err is what a kernel without nf_tables answers.
func noNFTables(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT)
}
