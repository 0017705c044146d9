// Package nft reads the rules of nf_tables over netlink, and makes of them what package rules decides by.
package nft

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/google/nftables"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate/nfnl"
)

// List returns all chains of nf_tables in the calling thread's network namespace, without rules. Those of tables that
// are switched off are left out.
func List() ([]rules.Chain, error) { return read(func(rules.Chain) bool { return false }) }

// Read returns the chains of nf_tables in the calling thread's network namespace that are wanted, with their rules.
func Read(wanted func(rules.Chain) bool) ([]rules.Chain, error) {
	all, err := read(wanted)
	return slices.DeleteFunc(all, func(c rules.Chain) bool { return !wanted(c) }), err
}

// attempts bounds how often rules that change while they are read are read again.
const attempts = 10

// read returns all chains, those that are wanted with their rules.
func read(wanted func(rules.Chain) bool) (all []rules.Chain, err error) {
	var conn nfnl.Conn
	defer conn.Close()
	for range attempts {
		r := reader{Reader: nfnl.Reader{Conn: &conn}}
		before := generation(&conn)
		all = r.chains(wanted)
		switch after := generation(&conn); {
		case errors.Is(r.Err, nfnl.ErrMoved):
		case r.Err != nil || before == after:
			return all, r.Err
		}
	}
	return nil, nfnl.ErrMoved
}

// generation returns a number that changes with every rule, 0 where there is no nf_tables.
func generation(conn *nfnl.Conn) uint32 {
	r := nfnl.Reader{Conn: conn}
	return r.Generation()
}

// reader reads nf_tables as it is at one time.
type reader struct {
	nfnl.Reader

	devices map[uint32]string // by index; nil: not read yet
}

func (r *reader) chains(wanted func(rules.Chain) bool) (all []rules.Chain) {
	tables := map[nfnl.Place]map[string][]nfnl.Rule{} // by chain
	for _, header := range r.Chains() {
		p := header.Place
		c := rules.Chain{Family: nfnl.FamilyName(p.Family), Table: p.Table, Name: p.Chain, Hook: header.HookName(), Priority: int(int32(header.Priority))}
		switch {
		case c.Hook == "":
		case header.Policy == nfnl.Drop:
			c.Policy = rules.Drop
		default:
			c.Policy = rules.Accept
		}
		if wanted(c) {
			table := nfnl.Place{Family: p.Family, Table: p.Table}
			if tables[table] == nil {
				tables[table] = r.rules(table)
			}
			for _, raw := range tables[table][p.Chain] {
				rule := r.rule(table, raw.Exprs)
				rule.Chain, rule.Comment = p.Chain, raw.Comment
				rule.Text = fmt.Sprintf("rule %s handle %d%s", c, raw.Handle, describe(rule))
				c.Rules = append(c.Rules, rule)
			}
		}
		all = append(all, c)
	}
	return all
}

// rules returns the rules of a table by their chains.
func (r *reader) rules(table nfnl.Place) map[string][]nfnl.Rule {
	all := map[string][]nfnl.Rule{}
	for _, rule := range r.RulesIn(table.Family, table.Table) {
		all[rule.Chain] = append(all[rule.Chain], rule)
	}
	return all
}

// device returns the name of a device, empty if there is none of this index.
func (r *reader) device(index uint32) string {
	if r.devices == nil {
		r.devices = map[uint32]string{}
		links, _ := net.Interfaces() // without, the condition is not understood
		for _, l := range links {
			r.devices[uint32(l.Index)] = l.Name
		}
	}
	return r.devices[index]
}

// span is the keys from one to another, which belong to it.
type span struct{ first, last []byte }

// spans returns the elements of a set that belongs to one rule, of which each key has size bytes. It returns nil for any other,
// which may be large.
func spans(table nfnl.Place, name string, size int) (all []span) {
	conn, err := nftables.New()
	if err != nil {
		return nil
	}
	set, err := conn.GetSetByName(&nftables.Table{Family: table.Family, Name: table.Table}, name)
	if err != nil || !set.Anonymous || set.IsMap {
		return nil
	}
	elements, err := conn.GetSetElements(set)
	if err != nil {
		return nil
	}
	slices.SortFunc(elements, compareElements)
	open := false
	for _, e := range elements {
		switch {
		case len(e.Key) != size || e.KeyEnd != nil:
			return nil
		case !set.Interval:
			all = append(all, span{e.Key, e.Key})
			continue
		case open:
			all[len(all)-1].last = nfnl.Before(e.Key)
		}
		if open = !e.IntervalEnd; open {
			all = append(all, span{e.Key, slices.Repeat([]byte{0xff}, size)})
		}
	}
	return all
}

// compareElements puts the end of a range before what begins behind it.
func compareElements(a, b nftables.SetElement) int {
	if c := bytes.Compare(a.Key, b.Key); c != 0 || a.IntervalEnd == b.IntervalEnd {
		return c
	} else if a.IntervalEnd {
		return -1
	}
	return 1
}
