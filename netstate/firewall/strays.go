package firewall

import (
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// stray is something in a table of ours that is none of our chains, and how to delete it.
type stray struct {
	text   string
	empty  func(*nftables.Conn) // takes its references to others away; nil: it has none
	remove func(*nftables.Conn)
}

// strays returns what stands in our table of a family beside our chains: other chains last, because maps lead to them.
func (r *reader) strays(family netstate.Family) []stray {
	table := nativeTable(family)
	var all []stray
	for _, m := range r.Call(unix.NFT_MSG_GETSET, netlink.Dump, family, table.Name) {
		attrs := r.Attributes(m.Data[4:])
		if flags, _ := attrs.Uint32(unix.NFTA_SET_FLAGS); flags&unix.NFT_SET_ANONYMOUS == 0 { // that goes with its rule
			set := &nftables.Set{Table: table, Name: attrs.String(unix.NFTA_SET_NAME)}
			all = append(all, setStray(set, flags))
		}
	}
	for _, m := range r.Call(unix.NFT_MSG_GETOBJ, netlink.Dump, family, table.Name) {
		attrs := r.Attributes(m.Data[4:])
		kind, _ := attrs.Uint32(unix.NFTA_OBJ_TYPE)
		o := &nftables.NamedObj{Table: table, Name: attrs.String(unix.NFTA_OBJ_NAME), Type: nftables.ObjType(kind)}
		all = append(all, stray{"object " + o.Name, nil, func(c *nftables.Conn) { c.DeleteObject(o) }})
	}
	for _, m := range r.Call(unix.NFT_MSG_GETFLOWTABLE, netlink.Dump, family, table.Name) {
		attrs := r.Attributes(m.Data[4:])
		o := &nftables.Flowtable{Table: table, Name: attrs.String(nftables.NFTA_FLOWTABLE_NAME)}
		all = append(all, stray{"flowtable " + o.Name, nil, func(c *nftables.Conn) { c.DelFlowtable(o) }})
	}
	return append(all, r.strayChains(family, table)...)
}

func setStray(set *nftables.Set, flags uint32) stray {
	remove := func(c *nftables.Conn) { c.DelSet(set) }
	if flags&(unix.NFT_SET_MAP|unix.NFT_SET_OBJECT) != 0 {
		return stray{"map " + set.Name, func(c *nftables.Conn) { c.FlushSet(set) }, remove}
	}
	return stray{"set " + set.Name, nil, remove}
}

func (r *reader) strayChains(family netstate.Family, table *nftables.Table) []stray {
	var all []stray
	for _, m := range r.Call(unix.NFT_MSG_GETCHAIN, netlink.Dump, family, table.Name) { // of all tables
		attrs := r.Attributes(m.Data[4:])
		flags, _ := attrs.Uint32(nfnl.ChainFlags)
		chain := &nftables.Chain{Table: table, Name: attrs.String(unix.NFTA_CHAIN_NAME)}
		isOther := attrs.String(unix.NFTA_CHAIN_TABLE) != table.Name || isNative(family, chain.Name)
		if isOther || flags&nfnl.ChainBinding != 0 {
			continue
		}
		all = append(all, stray{strings.TrimSpace("chain " + chain.Name + " " + r.Header(attrs).String()),
			func(c *nftables.Conn) { c.FlushChain(chain) }, func(c *nftables.Conn) { c.DelChain(chain) }})
	}
	return all
}

// isNative reports whether our table of a family has a chain of that name.
func isNative(family netstate.Family, chain string) bool {
	return slices.ContainsFunc(roles[:], func(role netstate.Role) bool { return nativeChain(family, role).Name == chain })
}

// IsOurs reports whether a chain is one of the nftables mode's. The family's name is nft's.
func IsOurs(family, table, chain string) bool {
	for f, name := range map[netstate.Family]string{netstate.IPv4: "ip", netstate.IPv6: "ip6"} {
		if family == name && table == nativeTable(f).Name && isNative(f, chain) {
			return true
		}
	}
	return false
}

// names returns the strays as one text.
func names(all []stray) string {
	var texts []string
	for _, s := range all {
		texts = append(texts, s.text)
	}
	return strings.Join(texts, ", ")
}

// deleteStrays deletes what stands beside our chains. First it takes away what leads from one to another.
func (tx *transaction) deleteStrays(family netstate.Family) {
	all := tx.strays(family)
	for _, s := range slices.Backward(all) {
		if s.empty != nil {
			s.empty(&tx.Conn)
		}
	}
	for _, s := range all {
		s.remove(&tx.Conn)
	}
}
