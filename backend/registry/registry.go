// Package registry is the literal map of the backends that net-conf.json can name.
package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/alloc"
	"github.com/twill-net/twill/backend/cloudroute"
	"github.com/twill-net/twill/backend/extension"
	"github.com/twill-net/twill/backend/hostgw"
	"github.com/twill-net/twill/backend/ipip"
	"github.com/twill-net/twill/backend/ipsec"
	"github.com/twill-net/twill/backend/transition"
	"github.com/twill-net/twill/backend/udp"
	"github.com/twill-net/twill/backend/vxlan"
	"github.com/twill-net/twill/backend/wireguard"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// newFunc makes a backend for the cluster's networks from net-conf.json's Backend object, with warnings about
// what it ignores.
type newFunc func(networks []netip.Prefix, options json.RawMessage) (backend.Backend, []string, error)

func backends(pools []subnet.Pool) map[string]newFunc {
	return map[string]newFunc{
		"ali-vpc":   cloudroute.New("ali-vpc", pools),
		"alloc":     alloc.New,
		"aws-vpc":   cloudroute.New("aws-vpc", pools),
		"extension": extension.New,
		"gce":       cloudroute.New("gce", pools),
		"host-gw":   hostgw.New,
		"ipip":      ipip.New,
		"ipsec":     ipsec.New,
		"udp":       udp.New,
		"vxlan":     vxlan.New,
		"wireguard": wireguard.New,
	}
}

// Types are the backends' types.
func Types() []string { return slices.Sorted(maps.Keys(backends(nil))) }

// New makes the backend of one type for the pools of the cluster's network config, and for more networks with pods of
// these pools' families.
func New(kind string, pools []subnet.Pool, options json.RawMessage, more ...netip.Prefix) (backend.Backend, []string,
	error) {
	known := backends(pools)
	if f, ok := known[strings.ToLower(kind)]; ok {
		return f(networks(pools, more), options)
	}
	return nil, nil, fmt.Errorf("net-conf Backend: unknown Type %q, want one of %s", kind,
		strings.Join(Types(), ", "))
}

// networks returns the pools' networks, and those of more that have one of the pools' families.
func networks(pools []subnet.Pool, more []netip.Prefix) (list []netip.Prefix) {
	for _, p := range pools {
		list = append(list, p.Network)
	}
	for _, n := range more {
		if slices.ContainsFunc(pools, func(p subnet.Pool) bool { return p.Family() == netstate.FamilyOf(n.Addr()) }) {
			list = append(list, n)
		}
	}
	return list
}

// stands are the backends that can stand beside each other on a node.
var stands = []string{"host-gw", "ipip", "udp", "vxlan", "wireguard"}

// NewKept makes the backend of a network config like New, with those of the earlier configs that it keeps beside it.
func NewKept(conf subnet.Config, more ...netip.Prefix) (backend.Backend, []string, error) {
	b, warnings, err := New(conf.Backend, conf.Pools, conf.Options, more...)
	if err != nil || len(conf.Kept) == 0 || !slices.Contains(stands, conf.Backend) {
		return b, warnings, err
	}
	ways := []transition.Way{{Type: conf.Backend, Options: conf.Options, Backend: b}}
	for _, options := range conf.Kept {
		kept, err := conf.WithBackend(subnet.Config{Options: options})
		if err != nil || !slices.Contains(stands, kept.Backend) {
			continue
		}
		if b, _, err := New(kept.Backend, conf.Pools, options, more...); err == nil {
			ways = append(ways, transition.Way{Type: kept.Backend, Options: options, Backend: b})
		}
	}
	return transition.New(networks(conf.Pools, more), ways...), warnings, nil
}
