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

// New makes the backend of one type for the pools of the cluster's network config, and for more networks with pods of
// these pools' families.
func New(kind string, pools []subnet.Pool, options json.RawMessage, more ...netip.Prefix) (backend.Backend, []string,
	error) {
	var networks []netip.Prefix
	for _, p := range pools {
		networks = append(networks, p.Network)
	}
	for _, n := range more {
		if slices.ContainsFunc(pools, func(p subnet.Pool) bool { return p.Family() == netstate.FamilyOf(n.Addr()) }) {
			networks = append(networks, n)
		}
	}
	known := backends(pools)
	if f, ok := known[strings.ToLower(kind)]; ok {
		return f(networks, options)
	}
	return nil, nil, fmt.Errorf("net-conf Backend: unknown Type %q, want one of %s", kind,
		strings.Join(slices.Sorted(maps.Keys(known)), ", "))
}
