package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/internal/kubeclient"
)

// Hints is what the Node object says about the choice of the underlay interface.
type Hints struct {
	Choose   []netip.Addr // node-public-ip and node-public-ipv6: the interface that has this address, IPv4 first
	Internal []netip.Addr // the node's addresses of type InternalIP
}

// Hints reads the node's hints, and retries until ctx is done. An annotation that is not an address is an error.
func (s *Store) Hints(ctx context.Context) (h Hints, err error) {
	err = s.retry(ctx, taskAcquire, func() error {
		n, err := s.api.node(ctx, s.node)
		if err == nil {
			h, err = s.annotations.hints(s.annotations.own(n))
		}
		return err
	})
	return h, err
}

// NodeIPs implements subnet.Locator.
func (s *Store) NodeIPs(ctx context.Context) ([]netip.Addr, error) {
	h, err := s.Hints(ctx)
	return h.Addrs(), err
}

// Addrs returns the hints in the order in which they are tried.
func (h Hints) Addrs() []netip.Addr { return slices.Concat(h.Choose, h.Internal) }

func (a annotations) hints(r record) (h Hints, err error) {
	for _, f := range a.families {
		choose := r.of(f.family).choose
		if choose == "" {
			continue
		}
		addr, err := f.address(f.choose, choose)
		if err != nil {
			return h, kubeclient.Terminal(fmt.Errorf("node %q: annotation %w", r.name, err))
		}
		h.Choose = append(h.Choose, addr)
	}
	for text := range strings.SplitSeq(r.internal, ",") {
		if addr, err := netip.ParseAddr(text); err == nil {
			h.Internal = append(h.Internal, addr)
		}
	}
	return h, nil
}
