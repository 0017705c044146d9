package filter

import (
	"fmt"
	"slices"

	"github.com/google/nftables"

	"github.com/twill-net/twill/netstate"
)

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
		if o.Dev != "" {
			return netstate.Ethernet
		}
		return netstate.FamilyOf(o.Prefix.Addr())
	}
	return 0
}

// The steps of a plan, in order.
const (
	making = iota
	switching
	deleting
	steps
)

// transaction collects the messages for one family's changes.
type transaction struct {
	*nftables.Conn
	reader *reader
	family netstate.Family
	anew   int // the step that deletes the table first; steps: none does
	steps  [steps]netstate.Plan
	plan   netstate.Plan               // the step that is being written
	types  map[string]netstate.SetType // of the plan's sets, and of others that it has elements of
	gone   map[string]bool             // sets that the step deletes, with all elements
}

// begin splits the changes of a family.
func (f *Filter) begin(family netstate.Family, plan netstate.Plan) (*transaction, error) {
	tx := &transaction{Conn: f.writer, reader: f.reader(), family: family, anew: steps, plan: plan,
		types: map[string]netstate.SetType{}, gone: map[string]bool{}}
	if tx.unreadable() {
		tx.anew, tx.steps[switching] = switching, plan
		return tx, nil
	}
	tx.split()
	if nothing, there := tx.leavesNothing(); nothing { // the hooks go a step before
		tx.anew, tx.steps[deleting] = deleting, plan
		if !there {
			tx.steps[switching] = nil
		}
	}
	return tx, tx.reader.Err
}

// split tells what is made and deleted, with all that is in it, from what is changed.
func (tx *transaction) split() {
	made, deleted := map[string]bool{}, map[string]bool{} // sets
	for _, c := range tx.plan {
		if want, ok := c.Want.(netstate.Set); ok && c.Was == nil {
			made[want.Name] = true
		} else if was, ok := c.Was.(netstate.Set); ok && c.Want == nil {
			deleted[was.Name] = true
		}
	}
	for _, c := range tx.plan {
		step := switching
		switch key := c.Key(); {
		case key.Kind == netstate.KindHook:
		case c.Was == nil && (key.Kind != netstate.KindElement || made[c.Want.(netstate.Element).Set]):
			step = making
		case c.Want == nil && (key.Kind != netstate.KindElement || deleted[c.Was.(netstate.Element).Set]):
			step = deleting
		}
		tx.steps[step] = append(tx.steps[step], c)
	}
}

// write adds the messages of a step. A set has to exist before what it is looked up in, a chain before what leads to it,
// and what leads to something must be gone before that goes.
func (tx *transaction) write(step int) error {
	tx.plan = tx.steps[step]
	if len(tx.plan) == 0 {
		return nil
	}
	table := tableOf(tx.family)
	if tx.anew == step {
		tx.AddTable(table) // somebody may have deleted it
		tx.DelTable(table)
		tx.plan = slices.DeleteFunc(tx.plan, func(c netstate.Change) bool { return c.Want == nil })
	}
	if len(tx.plan) == 0 {
		return nil
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

// leavesNothing reports whether the plan deletes all that is in the table, and whether there still is one.
func (tx *transaction) leavesNothing() (nothing, there bool) {
	deleted := uint32(0)
	for _, c := range tx.plan {
		if c.Want != nil {
			return false, true
		}
		if c.Key().Kind != netstate.KindElement {
			deleted++
		}
	}
	if deleted == 0 {
		return false, true
	}
	table, there := tx.reader.Tables(tx.family)[netstate.FilterTable]
	return table.Use <= deleted, there
}

func (tx *transaction) addSets() error {
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
		if err != nil {
			return err
		}
		tx.types[want.Name] = want.Type
		set.ID = uint32(len(tx.types)) // or it would be from a variable that all users of the library share
		if err := tx.AddSet(set, nil); err != nil {
			return err
		}
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
		return baseOf(o), o.Rules, true
	}
	return nil, "", false
}

func (tx *transaction) fillChains() error {
	for _, c := range tx.plan {
		chain, rules, ok := chainIn(c)
		if !ok || c.Want == nil {
			continue
		}
		if o, ok := c.Want.(netstate.Filter); ok {
			if hook, taken := hookNamed(tx.family, o.Name); taken || o.Extra != "" {
				return fmt.Errorf("%s: want another name than %s, and no observed extras", o, hook.Name())
			}
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
