package firewall

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// nativeTable is flannel's table for a family.
func nativeTable(family netstate.Family) *nftables.Table {
	if family == netstate.IPv6 {
		return &nftables.Table{Name: "flannel-ipv6", Family: nftables.TableFamilyIPv6}
	}
	return &nftables.Table{Name: "flannel-ipv4", Family: nftables.TableFamilyIPv4}
}

// nativeChain is flannel's chain for a role.
func nativeChain(family netstate.Family, role netstate.Role) *nftables.Chain {
	policy := nftables.ChainPolicyAccept
	c := &nftables.Chain{Table: nativeTable(family), Policy: &policy}
	switch role {
	case netstate.Postrouting:
		c.Name, c.Type = "postrtg", nftables.ChainTypeNAT
		c.Hooknum, c.Priority = nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource
	case netstate.Forward:
		c.Name, c.Type = "forward", nftables.ChainTypeFilter
		c.Hooknum, c.Priority = nftables.ChainHookForward, nftables.ChainPriorityFilter
	case netstate.GuardInput:
		c.Name, c.Type = "guard-input", nftables.ChainTypeFilter
		c.Hooknum, c.Priority = nftables.ChainHookInput, nftables.ChainPriorityMangle
	case netstate.GuardForward:
		c.Name, c.Type = "guard-forward", nftables.ChainTypeFilter
		c.Hooknum, c.Priority = nftables.ChainHookForward, nftables.ChainPriorityMangle
	}
	return c
}

// forwardChain is the chain of iptables-nft in which another program may drop what we forward. An accept in a
// table of ours ends only our own base chain, so the accepts have to stand in that chain too.
func forwardChain(family netstate.Family) *nftables.Chain {
	return &nftables.Chain{Name: "FORWARD", Table: &nftables.Table{Name: "filter", Family: tableFamily(family)}}
}

// fits says whether the chain that exists has the header of the one that we want.
func (c *rawChain) fits(want *nftables.Chain) bool {
	return c.kind == string(want.Type) && c.hook == uint32(*want.Hooknum) &&
		c.priority == uint32(*want.Priority) && c.policy == nfAccept && !c.device
}

// readNative is one chain of the nftables mode, and whether any part of it exists.
func (f *Firewall) readNative(family netstate.Family, role netstate.Role) (netstate.Chain, bool, error) {
	c := netstate.Chain{Mode: netstate.NFTables, Family: family, Role: role}
	want := nativeChain(family, role)
	header, err := f.nf.chain(c.Family, want.Table.Name, want.Name)
	if err != nil {
		return c, false, err
	}
	if header == nil {
		c.Extra = "missing"
	} else if err := f.readBody(&c, header); err != nil {
		return c, false, err
	}
	var accepts int
	if role == netstate.Forward {
		if accepts, err = f.readAccepts(&c); err != nil {
			return c, false, err
		}
	}
	return c, header != nil || accepts > 0, nil
}

// readBody reads what is in c's table and chain.
func (f *Firewall) readBody(c *netstate.Chain, header *rawChain) error {
	want := nativeChain(c.Family, c.Role)
	if !header.fits(want) {
		c.Extra = fmt.Sprintf("type %q hook %d priority %d policy %d", header.kind, header.hook,
			int32(header.priority), header.policy)
	}
	dormant, err := f.nf.dormant(c.Family, want.Table.Name)
	if err != nil {
		return fmt.Errorf("read table %s: %w", want.Table.Name, err)
	}
	if dormant {
		c.Extra = join(c.Extra, "dormant")
	}
	raw, err := f.nf.rules(c.Family, want.Table.Name, want.Name)
	if err != nil {
		return err
	}
	setRules(c, decodeAll(raw, c.Family))
	if c.Role == netstate.Forward && len(raw) > 0 && raw[0].comment == placeComment(netstate.First) {
		c.Place = netstate.First
	}
	return nil
}

func decodeAll(raw []rawRule, family netstate.Family) []netstate.Rule {
	var rules []netstate.Rule
	for _, r := range raw {
		rules = append(rules, decode(r, family))
	}
	return rules
}

// readAccepts sets c.Place, and gives the number of our rules in FORWARD. Without such a base chain the place that
// was asked for stands in the comments of our own.
func (f *Firewall) readAccepts(c *netstate.Chain) (int, error) {
	header, rules, err := f.forwardRules(c.Family)
	if err != nil || header == nil || header.kind == "" {
		return 0, err
	}
	ours := slices.DeleteFunc(slices.Clone(rules), func(r rawRule) bool { return !r.isAccept() })
	want := rulesOf(*c)
	c.Place = placeOf(baseRules(rules), len(want))
	if !slices.Equal(decodeAll(ours, c.Family), want) {
		c.Place = netstate.Misplaced
	}
	return len(ours), nil
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

func (f *Firewall) forwardRules(family netstate.Family) (*rawChain, []rawRule, error) {
	fwd := forwardChain(family)
	header, err := f.nf.chain(family, fwd.Table.Name, fwd.Name)
	if err != nil || header == nil {
		return nil, nil, err
	}
	rules, err := f.nf.rules(family, fwd.Table.Name, fwd.Name)
	return header, rules, err
}

// putNative writes one chain of the nftables mode as one transaction.
func (f *Firewall) putNative(c netstate.Chain) error {
	want := nativeChain(c.Family, c.Role)
	header, err := f.nf.chain(c.Family, want.Table.Name, want.Name)
	if err != nil {
		return err
	}
	tx, err := nftables.New()
	if err != nil {
		return err
	}
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
		e, err := encode(r)
		if err != nil {
			return err
		}
		tx.AddRule(&nftables.Rule{Table: want.Table, Chain: want, Exprs: e, UserData: comment(placeComment(c.Place))})
	}
	if c.Role == netstate.Forward {
		if err := f.putAccepts(tx, c); err != nil {
			return err
		}
	}
	return tx.Flush()
}

// putAccepts moves our accepts to their place in FORWARD, if there is such a base chain.
func (f *Firewall) putAccepts(tx *nftables.Conn, c netstate.Chain) error {
	header, rules, err := f.forwardRules(c.Family)
	if err != nil || header == nil || header.kind == "" {
		return err
	}
	fwd := forwardChain(c.Family)
	if err := deleteRules(tx, fwd, rules, rawRule.isAccept); err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(rules), rawRule.isAccept)
	at, end := slot(c.Place, baseRules(rules))
	for _, r := range rulesOf(c) {
		e, err := encode(r)
		if err != nil {
			return err
		}
		rule := &nftables.Rule{Table: fwd.Table, Chain: fwd, Exprs: e, UserData: comment(placeComment(c.Place))}
		if end {
			tx.AddRule(rule)
		} else {
			rule.Position = others[at].handle // each is inserted right before that one
			tx.InsertRule(rule)
		}
	}
	return nil
}

func deleteRules(tx *nftables.Conn, c *nftables.Chain, rules []rawRule, match func(rawRule) bool) error {
	for _, r := range rules {
		if !match(r) {
			continue
		}
		if err := tx.DelRule(&nftables.Rule{Table: c.Table, Chain: c, Handle: r.handle}); err != nil {
			return err
		}
	}
	return nil
}

// deleteNative removes one chain of the nftables mode, our accepts in FORWARD, and with its last chain the table.
func (f *Firewall) deleteNative(c netstate.Chain) error {
	want := nativeChain(c.Family, c.Role)
	tx, err := nftables.New()
	if err != nil {
		return err
	}
	others := 0
	for _, role := range roles {
		n := nativeChain(c.Family, role)
		header, err := f.nf.chain(c.Family, n.Table.Name, n.Name)
		if err != nil {
			return err
		}
		switch {
		case header != nil && role != c.Role:
			others++
		case header != nil:
			tx.FlushChain(want)
			tx.DelChain(want)
		}
	}
	if _, err := f.nf.dormant(c.Family, want.Table.Name); err == nil && others == 0 {
		tx.DelTable(want.Table)
	}
	if c.Role == netstate.Forward {
		c.Rules = [netstate.MaxRules]netstate.Rule{}
		if err := f.putAccepts(tx, c); err != nil {
			return err
		}
	}
	return tx.Flush()
}

// noNFTables says whether err is what a kernel without nf_tables answers.
func noNFTables(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT)
}
