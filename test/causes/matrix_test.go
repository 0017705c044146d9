//go:build soak

package causes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twill-net/twill/lab"
)

// patience is how long a packet may take.
const patience = 400 * time.Millisecond

// told is what the kernel answers for a packet that is larger than a path whose MTU it knows: it is not lost.
const told = "told that it is too long"

// probe is one kind of traffic between two pods.
type probe struct{ from, to, what string }

func (p probe) String() string { return p.from + " > " + p.to + " " + p.what }

// losses are the probes that were not answered, and why.
type losses map[probe]string

// both are those that were lost twice.
func (l losses) both(o losses) losses {
	b := losses{}
	for p, why := range o {
		if _, ok := l[p]; ok {
			b[p] = why
		}
	}
	return b
}

// real are those of which nobody was told.
func (l losses) real() losses {
	r := maps.Clone(l)
	maps.DeleteFunc(r, func(_ probe, why string) bool { return why == told })
	return r
}

// String is how many were lost, with a few of each kind.
func (l losses) String() string {
	kinds := map[string][]string{}
	for p, why := range l {
		kinds[p.what] = append(kinds[p.what], p.from+">"+p.to+" ("+why+")")
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		list := kinds[k]
		slices.Sort(list)
		parts = append(parts, fmt.Sprintf("%s: %d like %s", k, len(list), strings.Join(list[:min(2, len(list))], ", ")))
	}
	return strings.Join(parts, "; ")
}

// oracle sends real packets between all pods of a lab.
type oracle struct {
	pods    []*lab.Pod
	mtu     map[string]int // of the pods' devices while they were healthy
	servers []*server
	canary  *server // in this process's own namespace, where nothing is injected
}

// newOracle has each pod answer.
func newOracle(ctx context.Context, l *lab.Lab) (*oracle, error) {
	o := &oracle{pods: l.Pods(), mtu: map[string]int{}}
	for _, p := range o.pods {
		mtu, err := p.MTU()
		if err != nil {
			return nil, err
		}
		o.mtu[p.ID()] = mtu
		s, err := serve(ctx, p.Do)
		if err != nil {
			return nil, fmt.Errorf("listen in %s: %w", p.ID(), err)
		}
		o.servers = append(o.servers, s)
	}
	var err error
	o.canary, err = serve(ctx, func(fn func() error) error { return fn() })
	return o, err
}

func (o *oracle) close() {
	o.canary.close()
	for _, s := range o.servers {
		s.close()
	}
}

// attempts are how often a matrix is repeated because the machine is too busy to tell what it means.
const attempts = 4

// matrix sends everything at once, and returns what was lost. What is lost while packets are lost where nothing was
// injected too, it sends again, and waits longer.
func (o *oracle) matrix(ctx context.Context, limit time.Duration) (lost losses) {
	for range attempts {
		var busy bool
		if lost, busy = o.round(ctx, patient(limit)); len(lost) == 0 || !busy {
			return lost
		}
		limit = limit * 3 / 2
	}
	return lost
}

// round is one attempt, and whether the machine was busy.
func (o *oracle) round(ctx context.Context, limit time.Duration) (lost losses, busy bool) {
	var mu sync.Mutex
	lost = losses{}
	note := func(p probe, err error) {
		if err == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		lost[p] = reason(err)
	}
	var group sync.WaitGroup
	for i, p := range o.pods {
		for _, f := range families(p.Addrs) {
			group.Go(func() { o.datagrams(ctx, i, f, limit, note) })
			for k, s := range o.servers {
				if k != i {
					to := netip.AddrPortFrom(addrOf(o.pods[k].Addrs, f), s.port)
					group.Go(func() {
						note(probe{p.ID(), o.pods[k].ID(), "tcp" + suffix(f)}, transfer(ctx, p.Dial, to, limit))
					})
				}
			}
		}
	}
	var late atomic.Bool
	for range len(o.pods) {
		group.Go(func() {
			to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), o.canary.port)
			if transfer(ctx, (&net.Dialer{}).DialContext, to, limit/2) != nil {
				late.Store(true)
			}
		})
	}
	group.Wait()
	return lost, late.Load()
}

func families(addrs []netip.Addr) []family {
	var all []family
	for _, a := range addrs {
		all = append(all, map[bool]family{true: ip4, false: ip6}[a.Is4()])
	}
	return all
}

func addrOf(addrs []netip.Addr, f family) netip.Addr {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is4() == (f == ip4) })
	return addrs[max(i, 0)]
}

func suffix(f family) string { return map[family]string{ip4: "4", ip6: "6"}[f] }

// patient returns a longer time where the machine is busy.
func patient(d time.Duration) time.Duration {
	var load float64
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(data), &load)
	}
	return time.Duration(float64(d) * min(max(load/float64(runtime.NumCPU()), 1), 2.5))
}

// reason is the last and shortest part of an error.
func reason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, ": "); i >= 0 && text != told {
		text = text[i+2:]
	}
	return cmp.Or(text, "lost")
}
