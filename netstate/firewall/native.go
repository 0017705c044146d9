package firewall

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// nativeTable returns flannel's table for a family.
func nativeTable(family netstate.Family) *nftables.Table {
	return &nftables.Table{Name: "flannel-" + strings.ToLower(family.String()), Family: nfnl.TableFamily(family)}
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
	case netstate.GuardSource: // only there does nf_tables look up a route back whatever interface the packet came by
		c.Name, c.Hooknum, c.Priority = "guard-source", nftables.ChainHookPrerouting, nftables.ChainPriorityMangle
	}
	c.Table, c.Policy = nativeTable(family), &policy
	return &c
}

// forwardChain returns the chain of iptables-nft in which another program may drop what we forward. An accept in a
// table of ours ends only our own base chain, so the accepts have to stand in that chain too.
func forwardChain(family netstate.Family) *nftables.Chain {
	return &nftables.Chain{Name: "FORWARD", Table: &nftables.Table{Name: "filter", Family: nfnl.TableFamily(family)}}
}

// native returns the chains of the nftables mode of which any part exists, and what else stands in their table.
func (r *reader) native(family netstate.Family, tables map[string]nfnl.Table) []netstate.Object {
	var objects []netstate.Object
	table, exists := tables[nativeTable(family).Name]
	chains := uint32(0)
	for _, role := range roles {
		c := netstate.Chain{Mode: netstate.NFTables, Family: family, Role: role}
		found := exists && r.nativeChain(&c, table)
		if found {
			chains++
		} else {
			c.Extra = "missing"
		}
		_, filter := tables["filter"]
		if accepts := role == netstate.Forward && filter && r.setPlace(&c); found || accepts {
			objects = append(objects, c)
		}
	}
	if table.Use > chains { // the kernel counts what is in a table, so that nothing is listed while it is ours alone
		if strays := names(r.strays(family)); strays != "" {
			objects = append(objects, netstate.Strays{Family: family, Names: strays})
		}
	}
	return objects
}

// nativeChain sets the rules of a chain of the nftables mode, and reports whether it exists.
func (r *reader) nativeChain(c *netstate.Chain, table nfnl.Table) bool {
	want := nativeChain(c.Family, c.Role)
	header := r.Chain(c.Family, want.Table.Name, want.Name)
	if header == nil {
		return false
	}
	if !header.Fits(want) {
		c.Extra = cmp.Or(header.String(), "no base chain")
	}
	if table.Dormant() {
		c.Extra = join(c.Extra, "dormant")
	}
	raw := r.Rules(c.Family, want.Table.Name, want.Name)
	setRules(c, decodeAll(raw, c.Family))
	if c.Role == netstate.Forward && len(raw) > 0 && raw[0].Comment == placeComment(netstate.First) {
		c.Place = netstate.First // that was asked for; it counts where FORWARD is no base chain
	}
	return true
}

func decodeAll(raw []nfnl.Rule, family netstate.Family) []netstate.Rule {
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
	ours := slices.DeleteFunc(slices.Clone(rules), func(r nfnl.Rule) bool { return !isAccept(r) })
	want := rulesOf(*c)
	c.Place = placeOf(baseRules(rules), len(want))
	if !slices.Equal(decodeAll(ours, c.Family), want) {
		c.Place = netstate.Misplaced
	}
	return len(ours) > 0
}

// isAccept reports whether r, of iptables-nft's FORWARD, is one of our accepts.
func isAccept(r nfnl.Rule) bool {
	return isMark(r.Comment) && jumpTo(r) == ""
}

func baseRules(rules []nfnl.Rule) []baseRule {
	var base []baseRule
	for _, r := range rules {
		base = append(base, baseRule{ours: isAccept(r), comment: r.Comment, drops: drops(r)})
	}
	return base
}

// forwardRules returns the rules of FORWARD, and whether it is a base chain.
func (r *reader) forwardRules(family netstate.Family) (rules []nfnl.Rule, base bool) {
	header := r.Chain(family, "filter", "FORWARD")
	return r.Rules(family, "filter", "FORWARD"), header != nil && header.Kind != ""
}

// transaction collects changes of nf_tables. They are made together or, after an error, not at all.
type transaction struct {
	nftables.Conn
	reader
}

func (f *Firewall) transaction() *transaction { return &transaction{reader: *f.reader()} }

func (tx *transaction) commit() error {
	if tx.Err != nil {
		return tx.Err
	}
	return tx.Flush()
}

// rule returns r as a rule of chain, with the comment of a place.
func (tx *transaction) rule(chain *nftables.Chain, r netstate.Rule, place netstate.Place) *nftables.Rule {
	exprs, err := encode(r)
	tx.Err = errors.Join(tx.Err, err)
	comment := userdata.AppendString(nil, userdata.TypeComment, placeComment(place))
	return &nftables.Rule{Table: chain.Table, Chain: chain, Exprs: exprs, UserData: comment}
}

// deleteRules deletes those rules of chain that match.
func (tx *transaction) deleteRules(chain *nftables.Chain, rules []nfnl.Rule, match func(nfnl.Rule) bool) {
	for _, r := range rules {
		if match(r) {
			err := tx.DelRule(&nftables.Rule{Table: chain.Table, Chain: chain, Handle: r.Handle})
			tx.Err = errors.Join(tx.Err, err)
		}
	}
}

// changeNative makes the changes to our table of a family, and to our accepts in FORWARD, as one transaction. A table
// with nothing of ours in it goes.
func (f *Firewall) changeNative(family netstate.Family, changes netstate.Plan) error {
	tx, table := f.transaction(), nativeTable(family)
	now, exists := tx.Tables(family)[table.Name]
	headers := tx.headers(family)
	left := maps.Clone(headers)
	for _, c := range changes {
		if want, ok := c.Want.(netstate.Chain); ok {
			left[want.Role] = &nfnl.Chain{}
		} else if was, ok := c.Was.(netstate.Chain); ok {
			delete(left, was.Role)
		}
	}
	switch {
	case len(left) > 0:
		if !exists {
			tx.AddTable(table)
		}
		tx.changeTable(family, headers, changes)
	case exists:
		tx.DelTable(table)
	}
	for _, c := range changes {
		if c.Key() == (netstate.Chain{Family: family, Role: netstate.Forward}).Key() {
			want, _ := c.Want.(netstate.Chain)
			tx.putAccepts(family, want)
		}
	}
	err := tx.commit()
	if err == nil && len(left) > 0 && now.Dormant() { // the kernel refuses new chains beside that
		tx.AddTable(table)
		err = tx.commit()
	}
	return err
}

// headers returns our chains of a family that exist.
func (r *reader) headers(family netstate.Family) map[netstate.Role]*nfnl.Chain {
	headers := map[netstate.Role]*nfnl.Chain{}
	for _, role := range roles {
		c := nativeChain(family, role)
		if h := r.Chain(family, c.Table.Name, c.Name); h != nil {
			headers[role] = h
		}
	}
	return headers
}

// changeTable makes changes to a table that keeps chains of ours. What may lead to something that goes is emptied
// first.
func (tx *transaction) changeTable(
	family netstate.Family, headers map[netstate.Role]*nfnl.Chain, changes netstate.Plan,
) {
	strays := false
	for _, c := range changes {
		chain, ok := cmp.Or(c.Want, c.Was).(netstate.Chain)
		if strays = strays || !ok; ok && headers[chain.Role] != nil {
			tx.FlushChain(nativeChain(family, chain.Role))
		}
	}
	if strays {
		tx.deleteStrays(family)
	}
	for _, c := range changes {
		if want, ok := c.Want.(netstate.Chain); ok {
			tx.putNative(want, headers[want.Role])
		} else if was, ok := c.Was.(netstate.Chain); ok && headers[was.Role] != nil {
			tx.DelChain(nativeChain(family, was.Role))
		}
	}
}

// putNative writes one chain, which is empty or does not exist.
func (tx *transaction) putNative(c netstate.Chain, header *nfnl.Chain) {
	want := nativeChain(c.Family, c.Role)
	if header != nil && !header.Fits(want) {
		tx.DelChain(want) // type, hook and priority are fixed at creation
		header = nil
	}
	if header == nil {
		tx.AddChain(want)
	}
	for _, r := range rulesOf(c) {
		tx.AddRule(tx.rule(want, r, c.Place))
	}
}

// putAccepts moves our accepts, the rules of c, to their place in FORWARD, if there is such a base chain.
func (tx *transaction) putAccepts(family netstate.Family, c netstate.Chain) {
	rules, base := tx.forwardRules(family)
	if !base {
		return
	}
	forward := forwardChain(family)
	tx.deleteRules(forward, rules, isAccept)
	others := slices.DeleteFunc(slices.Clone(rules), isAccept)
	at, end := slot(c.Place, baseRules(rules))
	for _, r := range rulesOf(c) {
		rule := tx.rule(forward, r, c.Place)
		if end {
			tx.AddRule(rule)
		} else {
			rule.Position = others[at].Handle // each is inserted right before that one
			tx.InsertRule(rule)
		}
	}
}
