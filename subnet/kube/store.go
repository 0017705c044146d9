package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

var (
	_ subnet.Store    = (*Store)(nil)
	_ subnet.Reporter = (*Store)(nil)

	_ subnet.Checkpointer = (*Store)(nil)
	_ subnet.Locator      = (*Store)(nil)
)

// pollPodCIDR is how often Acquire looks for a podCIDR that is not there yet.
const pollPodCIDR = time.Second

var errNoPodCIDR = errors.New("has no podCIDR yet")

// own is what the store keeps published of its own node.
type own struct {
	writing sync.Mutex    // held while the Node object is read, compared and written
	kick    chan struct{} // something of this changed, or the Node object did

	mu      sync.Mutex
	want    *subnet.Lease // nil before Acquire
	lease   subnet.Lease  // the last one that was whole
	network *condition    // nil before Network
}

func (o *own) wake() {
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

func (o *own) wanted() (*subnet.Lease, *condition) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.want, o.network
}

// Last implements subnet.Store: it reads the node's annotations. It retries until ctx is done.
func (s *Store) Last(ctx context.Context, want subnet.Lease) (subnet.Lease, bool, error) {
	r, err := s.read(ctx, cmp.Or(want.Node, s.node))
	if err != nil {
		return subnet.Lease{}, false, err
	}
	l, err := s.notes.lease(r)
	if err != nil || !r.isPeer() {
		return subnet.Lease{}, false, nil // what cannot be read is no lease, and Acquire writes it anew
	}
	return l, true, nil
}

func (s *Store) read(ctx context.Context, node string) (r record, err error) {
	err = s.retry(ctx, taskAcquire, func() error {
		n, err := s.api.getNode(ctx, s.lean(), node)
		if err == nil {
			r = n.record
		}
		return err
	})
	return r, err
}

// Hints is what the Node object says about the choice of the underlay interface.
type Hints struct {
	Choose   []netip.Addr // node-public-ip and node-public-ipv6: the interface that has this address, IPv4 first
	Internal []netip.Addr // the node's addresses of type InternalIP
}

// Hints reads the node's hints, and retries until ctx is done. An annotation that is not an address is an error.
func (s *Store) Hints(ctx context.Context) (h Hints, err error) {
	err = s.retry(ctx, taskAcquire, func() error {
		n, err := s.api.getNode(ctx, s.lean(), s.node)
		if err == nil {
			h, err = s.notes.hints(n.record)
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

func (a annotations) hints(r record) (h Hints, err error) {
	for _, f := range a.families {
		value := r.choose[0]
		if f.family == netstate.IPv6 {
			value = r.choose[1]
		}
		if value == "" {
			continue
		}
		addr, err := f.address(f.choose, value)
		if err != nil {
			return h, refusal{fmt.Errorf("node %q: annotation %w", r.name, err)}
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

// Addrs returns the hints in the order in which they are tried.
func (h Hints) Addrs() []netip.Addr { return slices.Concat(h.Choose, h.Internal) }

// Acquire implements subnet.Store: the subnets are the node's podCIDRs, whatever want wishes. While the node has
// none, it waits, says so in an event, and tells Options.Waiting.
func (s *Store) Acquire(ctx context.Context, want subnet.Lease) (subnet.Lease, error) {
	want.Stacks = slices.Clone(want.Stacks)
	var got subnet.Lease
	said := false
	err := s.retry(ctx, taskAcquire, func() (err error) {
		got, err = s.claim(ctx, want)
		if errors.Is(err, errNoPodCIDR) {
			if !said {
				said = true
				s.Event(warning, "NoPodCIDR", err.Error())
			}
			s.sendQueued(ctx) // the queue is otherwise served while Watch runs only
		}
		return err
	})
	return got, err
}

// claim publishes want, and makes it what Watch keeps published.
func (s *Store) claim(ctx context.Context, want subnet.Lease) (subnet.Lease, error) {
	s.own.writing.Lock()
	defer s.own.writing.Unlock()
	got, err := s.publish(ctx, want)
	if err != nil {
		return subnet.Lease{}, err
	}
	s.own.mu.Lock()
	s.own.want, s.own.lease = &want, got
	s.own.mu.Unlock()
	s.own.wake()
	return got, nil
}

// publish reads the Node object and writes what it lacks of want. Call it with own.writing held.
func (s *Store) publish(ctx context.Context, want subnet.Lease) (subnet.Lease, error) {
	n, err := s.api.getNode(ctx, s.lean(), s.node)
	if err != nil {
		return subnet.Lease{}, err
	}
	if s.claimSpace != "" && n.podCIDRs == "" {
		if err := s.assign(ctx, n, want); err != nil {
			return subnet.Lease{}, err
		}
		if n, err = s.api.getNode(ctx, s.lean(), s.node); err != nil {
			return subnet.Lease{}, err
		}
	}
	l, err := s.local(want, n.record)
	if err != nil {
		return subnet.Lease{}, err
	}
	set := s.notes.missing(l, n.record)
	if len(set) == 0 {
		return l, nil
	}
	patch := map[string]any{"metadata": map[string]any{"annotations": set}}
	return l, s.api.patchStatus(ctx, s.node, mergePatch, patch)
}

// local is want with the subnets that r's podCIDRs give, and the addresses that its annotations overwrite.
func (s *Store) local(want subnet.Lease, r record) (subnet.Lease, error) {
	l := subnet.Lease{Node: s.node, Backend: want.Backend, Stacks: slices.Clone(want.Stacks)}
	if r.podCIDRs == "" {
		return l, fmt.Errorf("node %q %w: kube-controller-manager assigns one if it runs with --allocate-node-cidrs and --cluster-cidr", s.node, errNoPodCIDR)
	}
	for i := range l.Stacks {
		st := &l.Stacks[i]
		cidr, err := s.ownSubnet(r, st.Family())
		if err != nil {
			return l, refusal{fmt.Errorf("node %q: %w", s.node, err)}
		}
		st.Subnet = cidr
		if st.Underlay, err = s.notes.advertised(st.Underlay, r); err != nil {
			return l, refusal{fmt.Errorf("node %q: annotation %w", s.node, err)}
		}
		if err := within("the backend's data", encodePayload(st.Data), maxData); err != nil {
			return l, refusal{fmt.Errorf("node %q: %w: peers would leave it out", s.node, err)}
		}
	}
	return l, nil
}

func (s *Store) ownSubnet(r record, f netstate.Family) (netip.Prefix, error) {
	i := slices.IndexFunc(s.pools, func(p subnet.Pool) bool { return p.Family() == f })
	if i < 0 {
		return netip.Prefix{}, errors.New("the lease has an address family that the network config does not have")
	}
	network := s.pools[i].Network
	cidr, err := r.podCIDR(f)
	if err != nil {
		return netip.Prefix{}, err
	}
	if !cidr.IsValid() {
		return netip.Prefix{}, fmt.Errorf("its podCIDRs (%s) have none in the network %s: --cluster-cidr of kube-controller-manager must name a range of each address family", r.podCIDRs, network)
	}
	if cidr.Bits() < network.Bits() || !network.Contains(cidr.Addr()) {
		return netip.Prefix{}, fmt.Errorf("its podCIDR %s is outside of the network %s: --cluster-cidr of kube-controller-manager and the network config must agree", cidr, network)
	}
	return cidr, nil
}

// advertised is the address that peers are told: a, unless an annotation overwrites it.
func (a annotations) advertised(addr netip.Addr, r record) (netip.Addr, error) {
	for _, f := range a.families {
		if value := r.notes(f.family).overwrite; f.family == netstate.FamilyOf(addr) && value != "" {
			return f.address(f.overwrite, value)
		}
	}
	return addr, nil
}
