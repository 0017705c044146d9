// Package etcd is a subnet.Store on etcd v3, in flannel's layout, so that Twill and flannel share a cluster:
//
//	<prefix>/config                            the network config, net-conf.json
//	<prefix>/subnets/10.5.52.0-24              a node's lease
//	<prefix>/subnets/10.5.52.0-24&fc00::-64    a dual-stack node's
//	<prefix>/subnets/0.0.0.0-0&fc00::-64       a node's without IPv4 (flannel knows no such nodes)
//
// The value is {"PublicIP","PublicIPv6","BackendType","BackendData","BackendV6Data"}, and from Twill "Node" with
// the node's name. A key is held by an etcd lease of 24 hours; one without is a reservation: Twill uses it for
// the node whose PublicIP it has, gives its subnet to nobody else, and never puts a lease on it or deletes it.
//
// A node finds its record by its public IP. Of two records that claim overlapping subnets the one that was
// created earlier holds.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/redial"
	"github.com/twill-net/twill/subnet"
)

var (
	_ subnet.Redialer = (*Store)(nil)
	_ subnet.Renewer  = (*Store)(nil)
)

// Store is a subnet.Store on etcd.
type Store struct {
	options Options
	dir     string        // <prefix>/subnets/
	ttl     time.Duration // of the etcd lease
	recheck time.Duration // how often Watch asks whether it still sees the truth
	pools   []subnet.Pool // guarded by claiming

	clientMu sync.Mutex
	client   *clientv3.Client
	dialer   redial.Dialer
	files    files
	closed   bool

	unreached atomic.Pointer[error] // why the last connection did not come to be; nil: it did

	claiming  chan struct{} // a lock that a context can give up on: one claim at a time
	own       atomic.Pointer[owned]
	unrenewed atomic.Int32 // attempts in a row since own was to be renewed
	subnet.Exclusions
}

// owned is the record that this Store holds. It is never changed, only replaced.
type owned struct {
	lease   subnet.Lease
	name    string
	value   string
	create  int64
	leaseID clientv3.LeaseID // 0: a reservation
	renew   time.Time        // when it is to be renewed
	ends    time.Time        // zero: a reservation, which does not
}

// New returns a Store, which connects when it is first used and must be closed.
func New(o Options) (*Store, error) {
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if o.RenewMargin == 0 {
		o.RenewMargin = defaultMargin
	}
	if o.Report == nil {
		o.Report = func(error) {}
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	o.Prefix = path.Clean(o.Prefix)
	return &Store{
		options: o, files: files{options: o}, dir: path.Join(o.Prefix, "subnets") + "/",
		ttl: leaseTTL, recheck: 30 * time.Second, pools: o.Pools,
		claiming: make(chan struct{}, 1),
	}, nil
}

// Leases implements subnet.Lessor.
func (*Store) Leases() bool { return true }

// Last implements subnet.Store. A record is the node's by its public IP, or by its name if it is also the
// subnet that want wishes for.
func (s *Store) Last(ctx context.Context, want subnet.Lease) (subnet.Lease, bool, error) {
	v, err := s.list(ctx)
	if err != nil {
		return subnet.Lease{}, false, err
	}
	r, ok := prefer(find(v.sorted(), want), func(r record) bool { return len(r.subnets) == len(want.Stacks) })
	if ok {
		r.lease.Node = want.Node // flannel's record does not know it
	}
	return r.lease, ok, nil
}

// find returns want's records among those of a list, the best match first.
func find(records []record, want subnet.Lease) []record {
	if found := byAddress(records, want); len(found) > 0 {
		return found
	}
	// A name alone is not proof: hosts outside of Kubernetes like to be called localhost.
	for _, r := range records {
		wished := slices.ContainsFunc(want.Stacks, func(s subnet.Stack) bool { return slices.Contains(r.subnets, s.Subnet) })
		if r.named && r.lease.Node == want.Node && wished {
			return []record{r}
		}
	}
	return nil
}

// byAddress returns the records with want's public IPv4 address, and then those with its IPv6 one.
func byAddress(records []record, want subnet.Lease) (found []record) {
	for _, s := range want.Stacks {
		for _, r := range records {
			if h, ok := r.lease.Stack(s.Family()); ok && h.Underlay == s.Underlay {
				found = append(found, r)
			}
		}
	}
	return found
}

// prefer returns the first record for which ok is true, or else just the first.
func prefer(records []record, ok func(record) bool) (record, bool) {
	if i := slices.IndexFunc(records, ok); i >= 0 {
		return records[i], true
	}
	if len(records) > 0 {
		return records[0], true
	}
	return record{}, false
}

// Acquire implements subnet.Store.
func (s *Store) Acquire(ctx context.Context, want subnet.Lease) (subnet.Lease, error) {
	for retry := newBackoff(); ; {
		err := s.claim(ctx, want)
		if err == nil {
			return s.own.Load().lease, nil
		}
		if ctx.Err() != nil {
			return subnet.Lease{}, fmt.Errorf("acquire a lease: %w: %w", ctx.Err(), err)
		}
		if !errors.As(err, new(outageError)) {
			return subnet.Lease{}, err
		}
		s.options.Report(err)
		if !loop.Sleep(ctx, retry.Next()) {
			return subnet.Lease{}, fmt.Errorf("acquire a lease: %w: %w", ctx.Err(), err)
		}
	}
}

// The waits between attempts grow from the first to the last.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 2 * time.Second
)

func newBackoff() loop.Backoff { return loop.Backoff{First: firstWait, Last: lastWait} }
