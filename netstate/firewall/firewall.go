// Package firewall is the kernel side of netstate.Chain: it observes, applies and watches firewall rules, over
// nf_tables netlink or through the iptables binaries.
//
// No process is started while the rules stand still. nf_tables (iptables-nft included) has a generation number that
// changes with every rule, and only when the rules of our own iptables chains have changed are these listed with
// "iptables -S"; the chains that jump to them are read over netlink. The kernel does not announce changes of legacy
// iptables tables: those that exist are looked at every six seconds.
package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// legacyInterval is the time between two looks at the legacy tables. It is a multiple of that between two looks at sysctls.
const legacyInterval = 6 * time.Second

// Firewall reads and writes the chains of one network namespace, the one of the thread that calls it. It is
// used by one goroutine; only Watch's own goroutines run beside it.
type Firewall struct {
	nf         nfnl.Conn
	known      bool             // whether generation, native and compat hold
	generation uint32           // of native and compat
	native     netstate.State   // the nftables mode's chains, and strays in their tables
	compat     []netstate.Chain // the iptables mode's chains that live in nf_tables
	listings   map[netstate.Key]listing
	iptables   *runner

	legacy         []netstate.Chain // the iptables mode's chains in legacy tables
	legacyPrint    uint64           // of the tables when they were read
	legacyRead     time.Time        // when they were last known to be the same
	legacyChanged  atomic.Bool      // since legacyRead
	legacyInterval time.Duration
}

// New returns a Firewall that has opened nothing yet.
func New() *Firewall {
	return &Firewall{iptables: newRunner(), legacyInterval: legacyInterval}
}

// Close releases what the Firewall holds. It can be used again.
func (f *Firewall) Close() { f.nf.Close() }

// Observe returns the chains that are ours, in both modes, and what else stands in our tables: what flannel, this agent
// in the other mode or anybody else left here appears too, so that a plan deletes it.
func (f *Firewall) Observe(context.Context) (netstate.State, error) {
	if err := errors.Join(f.observeNF(), f.observeLegacy()); err != nil {
		return nil, err
	}
	state := netstate.State{}
	state.Merge(f.native)
	for _, c := range f.compat {
		f.merge(state, c, nft)
	}
	for _, c := range f.legacy {
		f.merge(state, c, legacy)
	}
	return state, nil
}

// merge adds a chain of the iptables mode. Chains can stand in both variants of iptables; the one that we do
// not write to makes the object differ from every wanted one, and so it goes.
func (f *Firewall) merge(state netstate.State, c netstate.Chain, v variant) {
	if v != f.iptables.variant() {
		c.Extra = join(c.Extra, "in "+v.String())
	}
	if other, ok := state[c.Key()].(netstate.Chain); ok {
		other.Extra = join(other.Extra, c.Extra)
		c = other
	}
	state.Add(c)
}

// observeLegacy reads the legacy tables again if the last reading is old, or outdated.
func (f *Firewall) observeLegacy() (err error) {
	changed := f.legacyChanged.Swap(false)
	if !changed && !f.legacyRead.IsZero() && time.Since(f.legacyRead) < f.legacyInterval {
		return nil
	}
	print, err := fingerprint()
	if err != nil {
		return err
	}
	if f.legacyRead.IsZero() || print != f.legacyPrint {
		f.legacyRead = time.Time{}
		if f.legacy, err = f.iptables.readLegacy(); err != nil {
			return err
		}
	}
	f.legacyPrint, f.legacyRead = print, time.Now()
	return nil
}

// observeNF reads nf_tables again if its generation has changed. A kernel without nf_tables has none of our chains.
func (f *Firewall) observeNF() error {
	for range 10 {
		r := f.reader()
		before := r.Generation()
		if nfnl.Unsupported(r.Err) || r.Err == nil && f.known && before == f.generation {
			return nil
		}
		f.known = false
		native, compat, listings := netstate.State{}, []netstate.Chain(nil), map[netstate.Key]listing{}
		for _, family := range netstate.Families {
			tables := r.Tables(family)
			native.Add(r.native(family, tables)...)
			for _, role := range roles {
				c := netstate.Chain{Mode: netstate.IPTables, Family: family, Role: role}
				if f.readCompat(r, &c, tables, listings) {
					compat = append(compat, c)
				}
			}
		}
		if r.Err == nil {
			f.listings = listings
		}
		if after := r.Generation(); r.Err == nil && before == after {
			f.native, f.compat, f.generation, f.known = native, compat, before, true
			return nil
		}
		if r.Err != nil && !errors.Is(r.Err, nfnl.ErrMoved) {
			return r.Err
		}
	}
	return nfnl.ErrMoved
}

// Apply carries out the changes of plan that are about chains: those of one of our nftables tables in one transaction,
// any other in one of its own. It does all that can be done and joins the errors.
func (f *Firewall) Apply(ctx context.Context, plan netstate.Plan) error {
	var errs []error
	done := map[netstate.Family]bool{}
	for _, change := range plan {
		if change.Key().Kind != netstate.KindChain {
			continue
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		name, err := change.Key().Name, error(nil)
		if family := nativeFamily(change); family == 0 {
			err = f.changeIPTables(change)
		} else if !done[family] {
			done[family], name = true, nativeTable(family).Name
			err = f.changeNative(family, slices.DeleteFunc(slices.Clone(plan), func(c netstate.Change) bool {
				return nativeFamily(c) != family
			}))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("write %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// nativeFamily returns the family of the table of ours that a change is about, 0 if it is about none.
func nativeFamily(change netstate.Change) netstate.Family {
	switch o := cmp.Or(change.Want, change.Was).(type) {
	case netstate.Strays:
		return o.Family
	case netstate.Chain:
		if o.Mode == netstate.NFTables {
			return o.Family
		}
	}
	return 0
}

func (f *Firewall) changeIPTables(change netstate.Change) error {
	f.legacyRead = time.Time{}
	if want, ok := change.Want.(netstate.Chain); ok {
		return f.putIPTables(want)
	}
	was := change.Was.(netstate.Chain)
	return errors.Join(f.deleteCompat(was), f.deleteLegacy(was))
}

// roles are the chains of one mode and family.
var roles = [...]netstate.Role{netstate.Postrouting, netstate.Forward, netstate.GuardInput, netstate.GuardForward,
	netstate.GuardSource}

// rulesOf returns c's rules.
func rulesOf(c netstate.Chain) []netstate.Rule {
	var rules []netstate.Rule
	for _, r := range c.Rules {
		if r != (netstate.Rule{}) {
			rules = append(rules, r)
		}
	}
	return rules
}

// setRules puts rules into c; those that do not fit go into Extra.
func setRules(c *netstate.Chain, rules []netstate.Rule) {
	for _, r := range rules[copy(c.Rules[:], rules):] {
		c.Extra = join(c.Extra, r.String())
	}
}
