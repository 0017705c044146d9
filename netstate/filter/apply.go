package filter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

const (
	// room is for a whole transaction in the socket, and for the answers to its messages. The kernel uses only as much
	// of it as there is to send: 1,000 chains of ten rules with 10,000 elements are ten megabytes.
	room = 256 << 20
	// perMessage is how many elements a message has: an attribute has 64 kB at most, and one that is an IPv6 address
	// and the longest name of a chain 200 bytes.
	perMessage = 250
	// timeout bounds a transaction: an answer that got lost must not stop the agent for ever.
	timeout = time.Minute
)

// Apply carries out the plan, in both families, as one transaction: all of it or, after an error, nothing.
//
// That needs large buffers for a large plan, and is worth it: nothing refers to a set before it is full, whatever the
// order of the plan, and a plan that fails leaves nothing behind.
func (f *Filter) Apply(ctx context.Context, plan netstate.Plan) error {
	if err := ctx.Err(); err != nil || len(plan) == 0 {
		return err
	}
	if err := f.openWriter(); err != nil {
		return fmt.Errorf("write the table %s: %w", netstate.FilterTable, err)
	}
	for _, family := range netstate.Families {
		changes := slices.DeleteFunc(slices.Clone(plan), func(c netstate.Change) bool { return familyOf(c) != family })
		tx := transaction{Conn: f.writer, reader: f.reader(), family: family, plan: changes}
		if err := tx.write(); err != nil {
			f.closeWriter() // with what was written
			return fmt.Errorf("write the table %s: %w", netstate.FilterTable, err)
		}
	}
	err := f.socket.SetDeadline(time.Now().Add(timeout))
	if err == nil {
		err = f.writer.Flush()
	}
	if err != nil {
		f.closeWriter()            // there may be more answers
		var first *netlink.OpError // every change after the one that is wrong may have failed, too
		if errors.As(err, &first) {
			err = first
		}
		return fmt.Errorf("write the table %s, %d changes: %w", netstate.FilterTable, len(plan), err)
	}
	return nil
}

// openWriter opens the socket over which all changes are made: its number tells them from others'.
func (f *Filter) openWriter() error {
	if f.writer != nil {
		return nil
	}
	writer, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		f.socket = c
		f.port.Store(c.PID())
		return errors.Join(c.SetWriteBuffer(room), c.SetReadBuffer(room))
	}))
	if err == nil {
		f.writer = writer
	}
	return err
}

func (f *Filter) closeWriter() {
	if f.writer != nil {
		f.port.Store(0)
		_ = f.writer.CloseLasting()
		f.writer, f.socket = nil, nil
	}
}

// familyOf returns the family of a change's objects.
func familyOf(c netstate.Change) netstate.Family {
	o := c.Want
	if o == nil {
		o = c.Was
	}
	switch o := o.(type) {
	case netstate.Set:
		return o.Family
	case netstate.Filter:
		return o.Family
	case netstate.Hook:
		return o.Family
	case netstate.Element:
		return netstate.FamilyOf(o.Prefix.Addr())
	}
	return 0
}

// transaction collects the messages for one family's changes.
type transaction struct {
	*nftables.Conn
	reader *reader
	family netstate.Family
	plan   netstate.Plan
	types  map[string]netstate.SetType // of sets of the plan, and of others that it has elements of
	gone   map[string]bool             // sets that the plan deletes, with all elements
}

// write adds the messages. A set has to exist before what it is looked up in, a chain before what leads to it, and what
// leads to something must be gone before that goes.
func (tx *transaction) write() error {
	if len(tx.plan) == 0 {
		return nil
	}
	table := tableOf(tx.family)
	if again := tx.unreadable(); again || tx.leavesNothing() {
		tx.AddTable(table) // somebody may have deleted it
		tx.DelTable(table)
		tx.plan = slices.DeleteFunc(tx.plan, func(c netstate.Change) bool { return c.Want == nil })
	}
	if len(tx.plan) == 0 || tx.reader.Err != nil {
		return tx.reader.Err
	}
	tx.AddTable(table)
	for _, step := range []func() error{
		tx.addSets, tx.emptyChains, tx.changeElements, tx.fillChains, tx.deleteSets, tx.deleteChains,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// unreadable reports whether the table has to be made again. Then the plan has all that is wanted.
func (tx *transaction) unreadable() bool {
	return slices.ContainsFunc(tx.plan, func(c netstate.Change) bool {
		was, ok := c.Was.(netstate.Hook)
		return ok && was.Extra != ""
	})
}

// leavesNothing reports whether the plan deletes all that is in the table.
func (tx *transaction) leavesNothing() bool {
	deleted := uint32(0)
	for _, c := range tx.plan {
		if c.Want != nil {
			return false
		}
		if c.Key().Kind != netstate.KindElement {
			deleted++
		}
	}
	return deleted > 0 && tx.reader.Tables(tx.family)[netstate.FilterTable].Use <= deleted
}

func (tx *transaction) addSets() error {
	tx.types, tx.gone = map[string]netstate.SetType{}, map[string]bool{}
	for _, c := range tx.plan {
		want, ok := c.Want.(netstate.Set)
		if !ok {
			if was, ok := c.Was.(netstate.Set); ok {
				tx.types[was.Name], tx.gone[was.Name] = was.Type, was.Type != netstate.Verdicts // elements hold chains
			}
			continue
		}
		if c.Was != nil || want.Extra != "" {
			return fmt.Errorf("%s: a set cannot be changed", c)
		}
		set, err := setOf(tx.family, want.Name, want.Type)
		if err == nil {
			err = tx.AddSet(set, nil)
		}
		if err != nil {
			return err
		}
		tx.types[want.Name] = want.Type
	}
	return nil
}

// emptyChains makes new chains, and empties those that are replaced or deleted.
func (tx *transaction) emptyChains() error {
	for _, c := range tx.plan {
		chain, _, ok := chainIn(c)
		if !ok {
			continue
		}
		if c.Want != nil {
			tx.AddChain(chain)
		}
		tx.FlushChain(chain)
	}
	return nil
}

// chainIn returns the chain that a change is about, and its wanted rules.
func chainIn(c netstate.Change) (chain *nftables.Chain, rules string, ok bool) {
	o := c.Want
	if o == nil {
		o = c.Was
	}
	switch o := o.(type) {
	case netstate.Filter:
		return chainOf(o.Family, o.Name), o.Rules, true
	case netstate.Hook:
		return hookOf(o.Family), o.Rules, true
	}
	return nil, "", false
}

func (tx *transaction) fillChains() error {
	for _, c := range tx.plan {
		chain, rules, ok := chainIn(c)
		if !ok || c.Want == nil {
			continue
		}
		if o, ok := c.Want.(netstate.Filter); ok && (o.Name == hookName || o.Extra != "") {
			return fmt.Errorf("%s: want another name than %s, and no observed extras", o, hookName)
		}
		for _, line := range linesOf(rules) {
			exprs, err := encode(tx.family, line)
			if err != nil {
				return fmt.Errorf("chain %s: %w", chain.Name, err)
			}
			tx.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: exprs})
		}
	}
	return nil
}

// changeElements deletes elements and then adds some, so that one whose verdict changes is both.
func (tx *transaction) changeElements() error {
	deletes, adds := map[string][]nftables.SetElement{}, map[string][]nftables.SetElement{}
	for _, c := range tx.plan {
		name := c.Key().Name
		if was, ok := c.Was.(netstate.Element); ok && !tx.gone[name] {
			was.Extra = ""
			if was.Verdict != "" {
				was.Verdict = "return" // the key is enough
			}
			if err := tx.encode(deletes, name, was); err != nil {
				return err
			}
		}
		if want, ok := c.Want.(netstate.Element); ok {
			if err := tx.encode(adds, name, want); err != nil {
				return err
			}
		}
	}
	if err := tx.eachMessage(deletes, tx.SetDeleteElements); err != nil {
		return err
	}
	return tx.eachMessage(adds, tx.SetAddElements)
}

func (tx *transaction) encode(to map[string][]nftables.SetElement, set string, e netstate.Element) error {
	kind, err := tx.typeOf(set)
	if err != nil {
		return err
	}
	elements, err := encodeElement(kind, e)
	to[set] = append(to[set], elements...)
	return err
}

// typeOf returns the type of a set of the plan, or of the table.
func (tx *transaction) typeOf(set string) (netstate.SetType, error) {
	kind, ok := tx.types[set]
	if ok {
		return kind, nil
	}
	for _, m := range tx.reader.Call(unix.NFT_MSG_GETSET, 0, tx.family, netstate.FilterTable, set) {
		kind, ok = parseSet(tx.reader.Attributes(m.Data[4:])).typeOf(tx.family)
	}
	if tx.reader.Err != nil {
		return "", tx.reader.Err
	}
	if !ok {
		return "", fmt.Errorf("set %s: there is none, or it is not ours", set)
	}
	tx.types[set] = kind
	return kind, nil
}

func (tx *transaction) eachMessage(
	sets map[string][]nftables.SetElement, add func(*nftables.Set, []nftables.SetElement) error,
) error {
	for name, elements := range sets {
		set, err := setOf(tx.family, name, tx.types[name])
		if err != nil {
			return err
		}
		for some := range slices.Chunk(elements, perMessage) {
			if err := add(set, some); err != nil {
				return err
			}
		}
	}
	return nil
}

func (tx *transaction) deleteSets() error {
	for _, c := range tx.plan {
		if was, ok := c.Was.(netstate.Set); ok && c.Want == nil {
			tx.DelSet(&nftables.Set{Table: tableOf(tx.family), Name: was.Name})
		}
	}
	return nil
}

func (tx *transaction) deleteChains() error {
	for _, c := range tx.plan {
		if chain, _, ok := chainIn(c); ok && c.Want == nil {
			tx.DelChain(chain)
		}
	}
	return nil
}
