package filter

import (
	"cmp"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// reader reads the table.
type reader struct {
	nfnl.Reader

	decodes func(chain string) bool // what is not wanted, too; nil: none
}

func (f *Filter) reader() *reader { return &reader{Reader: nfnl.Reader{Conn: &f.nf}} }

// table returns the objects in the table of a family, or its Hook with the reason why it has to be made again.
func (r *reader) table(family netstate.Family, table nfnl.Table, want netstate.State) []netstate.Object {
	c := content{reader: r, family: family, want: want}
	c.chains()
	c.sets()
	if table.Flags != 0 {
		c.strange("the table has the flags %#x", table.Flags)
	}
	if table.Use > c.count {
		c.strange("it has flowtables or objects")
	}
	if table.Use == 0 {
		c.strange("the table is empty")
	}
	if c.reason != "" {
		return []netstate.Object{netstate.Hook{Family: family, Extra: c.reason}}
	}
	return c.objects
}

// content is what stands in the table of a family.
type content struct {
	*reader
	family  netstate.Family
	want    netstate.State
	objects []netstate.Object
	count   uint32 // of chains and sets: the kernel's number of all in the table is larger if there is anything else
	reason  string // why the table has to be made again
}

// strange notes the first thing that no object stands for.
func (c *content) strange(format string, args ...any) {
	c.reason = cmp.Or(c.reason, fmt.Sprintf(format, args...))
}

// chains reads all chains and their rules.
func (c *content) chains() {
	rules := map[string][]nfnl.Rule{}
	for _, rule := range c.Rules(c.family, netstate.FilterTable) {
		rules[rule.Chain] = append(rules[rule.Chain], rule)
	}
	for _, m := range c.Call(unix.NFT_MSG_GETCHAIN, netlink.Dump, c.family) { // of all tables
		attrs := c.Attributes(m.Data[4:])
		if attrs.String(unix.NFTA_CHAIN_TABLE) != netstate.FilterTable {
			continue
		}
		c.count++
		name, header := attrs.String(unix.NFTA_CHAIN_NAME), c.Header(attrs)
		hook, isHook := hookNamed(c.family, name)
		flags, _ := attrs.Uint32(nfnl.ChainFlags)
		switch {
		case isHook && header.Fits(baseOf(hook)):
			wanted, _ := c.want[hook.Key()].(netstate.Hook)
			hook.Rules = c.textOf(name, wanted.Rules, rules[name])
			c.objects = append(c.objects, hook)
		case isHook || header.Kind != "" || flags&nfnl.ChainBinding != 0:
			c.strange("the chain %s is %s", name, cmp.Or(header.String(), "no base chain"))
		default:
			filter := netstate.Filter{Family: c.family, Name: name}
			wanted, _ := c.want[filter.Key()].(netstate.Filter)
			filter.Rules = c.textOf(name, wanted.Rules, rules[name])
			c.objects = append(c.objects, filter)
		}
	}
}

// textOf returns the wanted text of a chain if these are its rules, otherwise one that is not in the grammar, or their own.
func (c *content) textOf(chain, wanted string, rules []nfnl.Rule) string {
	text := textOf(c.family, wanted, rules)
	if c.decodes != nil && text != wanted && c.decodes(chain) {
		if own, ok := decode(c.family, rules); ok {
			return own
		}
	}
	return text
}

// textOf returns the wanted text of a chain if these are its rules, and otherwise one that is not in the grammar.
func textOf(family netstate.Family, wanted string, rules []nfnl.Rule) string {
	lines := linesOf(wanted)
	isWanted := len(lines) == len(rules)
	for i := 0; isWanted && i < len(rules); i++ {
		exprs, err := encode(family, lines[i])
		isWanted = err == nil && len(exprs) == len(rules[i].Exprs) && nfnl.IsPrefix(exprs, rules[i].Exprs) > 0
	}
	if isWanted {
		return wanted
	}
	return fmt.Sprintf("%d other rules", len(rules))
}

// sets reads all sets and their elements.
func (c *content) sets() {
	for _, m := range c.Call(unix.NFT_MSG_GETSET, netlink.Dump, c.family, netstate.FilterTable) {
		header := parseSet(c.Attributes(m.Data[4:]))
		c.count++
		kind, ok := header.typeOf(c.family)
		set := netstate.Set{Family: c.family, Name: header.name, Type: kind}
		if !ok {
			c.strange("the set %s is none of ours: %+v", header.name, header)
			continue
		}
		if wanted, ok := c.want[set.Key()].(netstate.Set); ok && wanted.Type != kind {
			c.strange("the type of the set %s is %q", set.Name, kind) // and no type can be changed
			continue
		}
		elements, err := decodeElements(c.family, set.Name, kind, c.elements(set.Name))
		if err != nil {
			c.strange("the %v", err)
		}
		c.objects = append(append(c.objects, set), elements...)
	}
}

// elements reads the elements of a set.
func (c *content) elements(set string) []rawElement {
	var elements []rawElement
	for _, m := range c.Call(unix.NFT_MSG_GETSETELEM, netlink.Dump, c.family, netstate.FilterTable, set) {
		for t, list := range nfnl.Walk(m.Data[4:]) {
			if t != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			for _, element := range nfnl.Walk(list) {
				elements = append(elements, parseElement(element))
			}
		}
	}
	return elements
}
