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

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// pollPodCIDR is how often Acquire looks for a podCIDR that is not there yet.
const pollPodCIDR = time.Second

// Acquire waits after these until somebody changes the Node object, or the node's own networks.
var (
	errNoPodCIDR = errors.New("has no podCIDR yet")
	errForeign   = errors.New("cannot use its podCIDR")
)

func isWait(err error) bool { return errors.Is(err, errNoPodCIDR) || errors.Is(err, errForeign) }

// own is what the store keeps published of its own node.
type own struct {
	writing sync.Mutex    // held while the Node object is read, compared and written
	changed chan struct{} // something of this changed, or the Node object did

	mu         sync.Mutex
	want       *subnet.Lease        // nil before Acquire
	lease      subnet.Lease         // the last one that was whole
	conditions map[string]condition // by type; the zero value: none is to be there
	asks       *string              // a node for whose sake all are asked to read Nodes; empty: nobody's; nil: not known yet
}

func (o *own) notify() {
	loop.Notify(o.changed)
}

func (o *own) wanted() *subnet.Lease {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.want
}

// ask sets for whose sake all are asked to read Nodes, and reports whether that is new; empty: nobody's.
func (o *own) ask(node string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	news := o.asks == nil || *o.asks != node
	o.asks = &node
	if news {
		o.notify()
	}
	return news
}

func (o *own) asked() *string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asks
}

// Last implements subnet.Store: it reads the node's annotations. It retries until ctx is done.
func (s *Store) Last(ctx context.Context, want subnet.Lease) (l subnet.Lease, ok bool, err error) {
	err = s.retry(ctx, taskAcquire, func() error {
		n, err := s.api.node(ctx, cmp.Or(want.Node, s.node))
		if err == nil {
			r := s.annotations.own(n)
			var unreadable error // then it is no lease, and Acquire writes a new one
			l, unreadable = s.annotations.lease(r)
			ok = unreadable == nil && r.isPeer()
		}
		return err
	})
	if !ok {
		l = subnet.Lease{}
	}
	return l, ok, err
}

// Acquire implements subnet.Store: the subnets are the node's podCIDRs, whatever want asks for. While the node has
// none, or one that is excluded, it waits, with an event and a call of Options.Waiting.
func (s *Store) Acquire(ctx context.Context, want subnet.Lease) (got subnet.Lease, err error) {
	want.Stacks = slices.Clone(want.Stacks)
	for last := ""; ; {
		err := s.retry(ctx, taskAcquire, func() (err error) { got, err = s.claim(ctx, want); return err })
		if !isWait(err) {
			return got, err
		}
		s.progress.Report(taskAcquire, err)
		poll, cancel := context.WithTimeout(ctx, pollPodCIDR)
		if last != err.Error() {
			last = err.Error()
			s.reportWait(poll, err)
		}
		s.sendQueued(poll) // the queue is otherwise served while Watch runs only
		<-poll.Done()
		cancel()
		if ctx.Err() != nil {
			return subnet.Lease{}, timeoutError(ctx, taskAcquire, err)
		}
	}
}

// reportWait makes an event of what Acquire waits for, and tells the scheduler if that is not only a matter of time.
func (s *Store) reportWait(ctx context.Context, err error) {
	if errors.Is(err, errNoPodCIDR) {
		s.Event(warning, "NoPodCIDR", err.Error())
		return
	}
	const reason = "ForeignPodCIDR"
	s.Event(warning, reason, err.Error())
	s.Network(false, reason, err.Error())
	if want, ok := s.own.condition(networkUnavailable); ok {
		s.progress.Report(taskNetwork, s.writeCondition(ctx, networkUnavailable, want))
	}
}

// OnDispute implements subnet.Disputed.
func (s *Store) OnDispute(f func(subnet.Lease)) { s.disputed = f }

// note tells of a record that is to become l, if its addresses are another machine's: neither l's nor those of before.
func (s *Store) note(l subnet.Lease, r record) {
	s.own.mu.Lock()
	last := s.own.lease
	s.own.mu.Unlock()
	if written := r.underlays(); s.disputed != nil && l.Moved(written) && last.Moved(written) {
		s.disputed(written)
	}
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
	s.own.notify()
	return got, nil
}

// publish reads the Node object and writes what it lacks of want. Call it with own.writing held.
func (s *Store) publish(ctx context.Context, want subnet.Lease) (subnet.Lease, error) {
	n, err := s.api.node(ctx, s.node)
	if err != nil {
		return subnet.Lease{}, err
	}
	if s.claimSpace != "" && n.Spec.podCIDRs() == "" {
		if err := s.assign(ctx, n, want); err != nil {
			return subnet.Lease{}, err
		}
		if n, err = s.api.node(ctx, s.node); err != nil {
			return subnet.Lease{}, err
		}
	}
	r := s.annotations.own(n)
	l, err := s.local(want, r)
	if err != nil {
		return subnet.Lease{}, err
	}
	if set := s.annotations.missing(l, r); len(set) > 0 {
		s.note(l, r)
		patch := map[string]any{"metadata": map[string]any{"annotations": set}}
		err = s.api.patchStatus(ctx, s.node, types.MergePatchType, patch)
	}
	if err == nil {
		_ = s.publishObjects(ctx, n, l, nil) // it is reported, and Watch tries again
	}
	return l, err
}

// local returns want with the subnets that r's podCIDRs give, and the addresses that its annotations overwrite.
func (s *Store) local(want subnet.Lease, r record) (subnet.Lease, error) {
	l := subnet.Lease{Node: s.node, Backend: want.Backend, Stacks: slices.Clone(want.Stacks)}
	if r.podCIDRs == "" {
		return l, fmt.Errorf("node %q %w: kube-controller-manager assigns one if it runs with --allocate-node-cidrs "+
			"and --cluster-cidr", s.node, errNoPodCIDR)
	}
	for i := range l.Stacks {
		st := &l.Stacks[i]
		cidr, err := s.ownSubnet(r, st.Family())
		if err != nil {
			return l, kubeclient.Terminal(fmt.Errorf("node %q: %w", s.node, err))
		}
		if err := s.Check(cidr); err != nil {
			return l, fmt.Errorf("node %q %w: %w", s.node, errForeign, err)
		}
		st.Subnet = cidr
		if st.Underlay, err = s.annotations.advertised(st.Underlay, r); err != nil {
			return l, kubeclient.Terminal(fmt.Errorf("node %q: %w", s.node, err))
		}
		if err := within("the backend's data", encodePayload(st.Data), maxData); err != nil {
			return l, kubeclient.Terminal(fmt.Errorf("node %q: %w: peers would leave it out", s.node, err))
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
		return netip.Prefix{}, fmt.Errorf("its podCIDRs (%s) have none in the network %s: --cluster-cidr of "+
			"kube-controller-manager must name a range of each address family", r.podCIDRs, network)
	}
	inside := func(n netip.Prefix) bool { return cidr.Bits() >= n.Bits() && n.Contains(cidr.Addr()) }
	if !inside(network) && !slices.ContainsFunc(s.networks, inside) {
		return netip.Prefix{}, fmt.Errorf("its podCIDR %s is outside of the network %s: --cluster-cidr of "+
			"kube-controller-manager and the network config must agree, or the agent's --cluster-cidr name the range",
			cidr, network)
	}
	return cidr, nil
}

// advertised returns the address that peers get: addr, unless an annotation overwrites it, or the node's ExternalIP if
// that is asked for.
func (a annotations) advertised(addr netip.Addr, r record) (netip.Addr, error) {
	for _, f := range a.families {
		if f.family != netstate.FamilyOf(addr) {
			continue
		}
		if value := r.of(f.family).overwrite; value != "" {
			return f.address("annotation "+f.overwrite, value)
		}
		for external := range strings.SplitSeq(r.external, ",") {
			if e, err := netip.ParseAddr(external); err == nil && netstate.FamilyOf(e) == f.family {
				return f.address("ExternalIP", external)
			}
		}
	}
	return addr, nil
}

// keep writes this node's lease and conditions again whenever the Node object differs, until ctx is done. Five repairs
// are made at once, then one a second: somebody may be writing against us.
func (s *Store) keep(ctx context.Context, v *sources) {
	limit := rate.NewLimiter(rate.Every(time.Second), 5)
	delay := kubeclient.Backoff().DelayFunc()
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.own.changed:
		case <-retry:
		}
		v.own.notify() // the lease in the snapshot may be another one
		retry = nil
		if r, ok := v.own.ownRecord(); ok {
			if errors.Join(s.keepLease(ctx, r, limit), s.keepObjects(ctx, v, r, limit),
				s.keepCondition(ctx, networkUnavailable, r, limit), s.keepCondition(ctx, peersReached, r, limit)) != nil {
				retry = time.After(delay())
			} else {
				delay = kubeclient.Backoff().DelayFunc()
			}
		}
	}
}

// keepLease returns an error if it is to be called again although the node does not change.
func (s *Store) keepLease(ctx context.Context, r record, limit *rate.Limiter) error {
	want := s.own.wanted()
	if want == nil {
		return nil
	}
	l, err := s.local(*want, r)
	unassigned := errors.Is(err, errNoPodCIDR) && s.claimSpace != ""
	if err != nil && !unassigned { // only a change of the node mends that
		if s.progress.Report(taskPublish, err) {
			s.Event(warning, "LeaseNotPublished", err.Error())
		}
		return nil
	}
	if !unassigned && len(s.annotations.missing(l, r)) == 0 {
		s.progress.Report(taskPublish, nil)
		return nil
	}
	if err := limit.Wait(ctx); err != nil {
		return err
	}
	err = s.republish(ctx)
	s.progress.Report(taskPublish, err)
	return err
}

// republish reads want under the lock: an Acquire that ran meanwhile has the newer one.
func (s *Store) republish(ctx context.Context) error {
	s.own.writing.Lock()
	defer s.own.writing.Unlock()
	want := s.own.wanted()
	_, err := s.publish(ctx, *want)
	return err
}
