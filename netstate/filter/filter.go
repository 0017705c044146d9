// Package filter is the kernel side of the nftables tables that enforce network policies: it observes, applies and
// watches the kinds Set, Filter, Element and Hook of netstate.
//
// The tables are ours alone, and packets meet the rules before a plan or those after it, never a part.
// What is read is compared with the encoding of what is wanted, and what is decoded encodes to what was read: nothing
// altered looks intact.
package filter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// Filter reads and writes the tables of all families in one network namespace, the one of the thread that calls it. It
// is used by one goroutine; only Watch's own goroutine runs beside it.
type Filter struct {
	nf     nfnl.Conn
	writer *nftables.Conn // nil: not open
	socket *netlink.Conn  // of writer
	port   atomic.Uint32  // of socket: the sender of our own changes
}

// New returns a Filter, or an error if the kernel has no nf_tables.
func New() (*Filter, error) {
	f := &Filter{}
	if err := f.check(); err != nil {
		f.Close()
		return nil, fmt.Errorf("enforce network policies: %w", err)
	}
	return f, nil
}

// check returns an error if nf_tables does not answer.
func (f *Filter) check() error {
	r := f.reader()
	r.Generation()
	if nfnl.Unsupported(r.Err) {
		return fmt.Errorf("want a kernel with nf_tables (CONFIG_NF_TABLES): %w", r.Err)
	}
	return r.Err
}

// CheckFrames returns an error if the kernel has no tables for frames.
func CheckFrames() error {
	hook := baseOf(netstate.Hook{Family: netstate.Ethernet})
	if err := try(netstate.Ethernet, func(conn *nftables.Conn, table *nftables.Table) {
		hook.Table = table
		conn.AddChain(hook)
	}); err != nil {
		return fmt.Errorf("want a kernel with nf_tables for bridges (CONFIG_NF_TABLES_BRIDGE): %w", err)
	}
	return nil
}

// CheckReset returns an error if the kernel cannot answer TCP with a reset.
func CheckReset() error {
	for _, family := range netstate.Families {
		if err := try(family, func(conn *nftables.Conn, table *nftables.Table) {
			chain := conn.AddChain(&nftables.Chain{Name: "reset", Table: table})
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(isProtocol(unix.IPPROTO_TCP), reset.encode(family, "")...)})
		}); err != nil {
			return fmt.Errorf("want a kernel that rejects packets (CONFIG_NFT_REJECT): %w", err)
		}
	}
	return nil
}

// CheckLog returns an error if the kernel cannot log packets of all families.
func CheckLog() error {
	for _, family := range families {
		if err := try(family, func(conn *nftables.Conn, table *nftables.Table) {
			chain := conn.AddChain(&nftables.Chain{Name: "log", Table: table})
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: logAs(family, "log")})
		}); err != nil {
			return fmt.Errorf("want a kernel that logs packets (CONFIG_NFT_LOG, CONFIG_NFT_LIMIT, "+
				"CONFIG_NETFILTER_NETLINK_LOG): %w", err)
		}
	}
	return nil
}

// try makes a table of its own and deletes it, in one transaction.
func try(family netstate.Family, fill func(*nftables.Conn, *nftables.Table)) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: netstate.FilterTable + "-check", Family: nfnl.TableFamily(family)}
	conn.AddTable(table)
	fill(conn, table)
	conn.DelTable(table)
	return conn.Flush()
}

// Close releases what the Filter holds. The table stays.
func (f *Filter) Close() {
	f.nf.Close()
	f.closeWriter()
}

// Observe returns what is in the table. Chains have the wanted text if their rules are what it says.
//
// If there is something in a table that no object of netstate stands for, a flag or a foreign kind of set, say, then
// the family's Hook with an Extra is all that is observed. A change of such a Hook deletes the table, and the plan,
// which has everything that is wanted, makes it again in the same transaction.
func (f *Filter) Observe(ctx context.Context, want netstate.State) (netstate.State, error) {
	return f.observe(ctx, want, nil)
}

// Read is Observe for who does not know all that is wanted: some other chains have the text of their rules, if all are in the
// grammar. That takes a tenth of a millisecond a rule.
func (f *Filter) Read(ctx context.Context, want netstate.State, decodes func(chain string) bool) (netstate.State, error) {
	return f.observe(ctx, want, decodes)
}

func (f *Filter) observe(ctx context.Context, want netstate.State, decodes func(string) bool) (netstate.State, error) {
	for range 10 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r := f.reader()
		r.decodes = decodes
		before := r.Generation()
		state := netstate.State{}
		for _, family := range families {
			if table, ok := r.Tables(family)[netstate.FilterTable]; ok {
				state.Add(r.table(family, table, want)...)
			}
		}
		after := r.Generation()
		if r.Err == nil && before == after {
			return state, nil
		}
		if r.Err != nil && !errors.Is(r.Err, nfnl.ErrMoved) {
			return nil, r.Err
		}
	}
	return nil, nfnl.ErrMoved
}

// families are those that have a table.
var families = [...]netstate.Family{netstate.IPv4, netstate.IPv6, netstate.Ethernet}

func tableOf(family netstate.Family) *nftables.Table {
	return &nftables.Table{Name: netstate.FilterTable, Family: nfnl.TableFamily(family)}
}

// hooksOf returns the hooks that a family's table can have, without rules.
func hooksOf(family netstate.Family) []netstate.Hook {
	if family == netstate.Ethernet {
		return []netstate.Hook{{Family: family}, {Family: family, Onward: true}}
	}
	return []netstate.Hook{{Family: family}, {Family: family, Local: true}}
}

// hookNamed returns the hook whose chain has a name.
func hookNamed(family netstate.Family, name string) (h netstate.Hook, ok bool) {
	hooks := hooksOf(family)
	i := slices.IndexFunc(hooks, func(h netstate.Hook) bool { return h.Name() == name })
	if i < 0 {
		return h, false
	}
	return hooks[i], true
}

// baseOf returns the base chain of a hook.
func baseOf(h netstate.Hook) *nftables.Chain {
	policy := nftables.ChainPolicyAccept
	chain := &nftables.Chain{Name: h.Name(), Table: tableOf(h.Family), Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy}
	switch {
	case h.Onward:
		chain.Priority = bridgeOther
	case h.Family == netstate.Ethernet:
		chain.Hooknum, chain.Priority = nftables.ChainHookPrerouting, bridgeFilter
	case h.Local:
		chain.Hooknum = nftables.ChainHookInput
	}
	return chain
}

// bridgeFilter and bridgeOther are NF_BR_PRI_FILTER_BRIDGED and NF_BR_PRI_FILTER_OTHER of linux/netfilter_bridge.h: before
// br_netfilter, which has NF_BR_PRI_BRNF, 0, and after it.
var bridgeFilter, bridgeOther = nftables.ChainPriorityRef(-200), nftables.ChainPriorityRef(200)

func chainOf(family netstate.Family, name string) *nftables.Chain {
	return &nftables.Chain{Name: name, Table: tableOf(family)}
}
