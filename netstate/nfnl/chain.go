package nfnl

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Verdicts and policies of linux/netfilter.h.
const (
	Drop   = 0 // NF_DROP
	Accept = 1 // NF_ACCEPT
)

// ChainFlags and ChainBinding are NFTA_CHAIN_FLAGS and NFT_CHAIN_BINDING of linux/netfilter/nf_tables.h. A chain that
// is bound belongs to a rule and goes with it.
const ChainFlags, ChainBinding = 10, 4

// Chain is a chain's header.
type Chain struct {
	Place          Place  // by Chains alone
	Kind           string // "nat", "filter"; empty: not a base chain
	Hook, Priority uint32
	Policy         uint32
	Device         bool
}

// Place is which chain it is, of whatever family.
type Place struct {
	Family       nftables.TableFamily
	Table, Chain string
}

// String is the chain as nft names it: inet fw forward.
func (p Place) String() string { return FamilyName(p.Family) + " " + p.Table + " " + p.Chain }

// Chains returns the headers of all chains, whoever wrote them, but for those of tables that are switched off.
func (r *Reader) Chains() (all []Chain) {
	dormant := map[Place]bool{}
	for _, m := range r.call(unix.NFT_MSG_GETTABLE, netlink.Dump, nftables.TableFamilyUnspecified) {
		name, t := r.table(m)
		dormant[Place{Family: nftables.TableFamily(m.Data[0]), Table: name}] = t.Dormant()
	}
	for _, m := range r.call(unix.NFT_MSG_GETCHAIN, netlink.Dump, nftables.TableFamilyUnspecified) {
		attrs := r.Attributes(m.Data[4:])
		c := r.Header(attrs)
		c.Place = Place{Family: nftables.TableFamily(m.Data[0]), Table: attrs.String(unix.NFTA_CHAIN_TABLE)}
		if !dormant[c.Place] {
			c.Place.Chain = attrs.String(unix.NFTA_CHAIN_NAME)
			all = append(all, *c)
		}
	}
	return all
}

// Chain returns a chain's header; nil if there is no such chain.
func (r *Reader) Chain(family netstate.Family, table, chain string) *Chain {
	for _, m := range r.Call(unix.NFT_MSG_GETCHAIN, 0, family, table, chain) {
		return r.Header(r.Attributes(m.Data[4:]))
	}
	return nil
}

// Header returns the header of a chain with these attributes.
func (r *Reader) Header(attrs Attributes) *Chain {
	hook := r.Attributes(attrs[unix.NFTA_CHAIN_HOOK])
	c := &Chain{Kind: attrs.String(unix.NFTA_CHAIN_TYPE)}
	c.Hook, _ = hook.Uint32(unix.NFTA_HOOK_HOOKNUM)
	c.Priority, _ = hook.Uint32(unix.NFTA_HOOK_PRIORITY)
	c.Policy, _ = attrs.Uint32(unix.NFTA_CHAIN_POLICY)
	_, c.Device = hook[unix.NFTA_HOOK_DEV]
	return c
}

// Fits reports whether the chain that exists has the header of the one that is wanted.
func (c *Chain) Fits(want *nftables.Chain) bool {
	return c.Kind == string(want.Type) && c.Hook == uint32(*want.Hooknum) &&
		c.Priority == uint32(*want.Priority) && c.Policy == Accept && !c.Device
}

// hooks are the names of the hooks of IP and of bridges, by number.
var hooks = [...]string{"prerouting", "input", "forward", "output", "postrouting", "ingress"}

// HookName returns the name of a base chain's hook, empty of any other chain.
func (c *Chain) HookName() string {
	names := hooks[:]
	switch c.Place.Family {
	case nftables.TableFamilyARP:
		names = []string{"input", "output", "forward"}
	case nftables.TableFamilyNetdev:
		names = []string{"ingress", "egress"}
	}
	switch {
	case c.Kind == "":
		return ""
	case int(c.Hook) < len(names):
		return names[c.Hook]
	}
	return fmt.Sprint(c.Hook)
}

// String returns what makes a chain a base chain, empty if it is none.
func (c *Chain) String() string {
	if c.Kind == "" {
		return ""
	}
	policy := "accept"
	if c.Policy == Drop {
		policy = "drop"
	}
	return fmt.Sprintf("type %s hook %s priority %d policy %s", c.Kind, c.HookName(), int32(c.Priority), policy)
}
