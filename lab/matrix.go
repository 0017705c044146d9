package lab

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Ping is one direction of one pair of pods, in one address family.
type Ping struct {
	From  string        `json:"from"` // node1/pod1
	To    string        `json:"to"`
	Addr  netip.Addr    `json:"addr"`
	RTT   time.Duration `json:"rttNanoseconds"`
	Error string        `json:"error,omitempty"`
}

// OK reports whether the ping was answered.
func (p Ping) OK() bool { return p.Error == "" }

// Matrix pings every pod from every other pod, once and all at the same time.
func (l *Lab) Matrix(ctx context.Context) ([]Ping, error) { return l.matrix(ctx, time.Second) }

func (l *Lab) matrix(ctx context.Context, timeout time.Duration) ([]Ping, error) {
	pods := l.Pods()
	rows := make([][]Ping, len(pods))
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range pods {
		group.Go(func() (err error) {
			rows[i], err = p.pingAll(ctx, pods, timeout)
			return err
		})
	}
	err := group.Wait()
	return slices.Concat(rows...), err
}

func (p *Pod) pingAll(ctx context.Context, pods []*Pod, timeout time.Duration) ([]Ping, error) {
	var pings []Ping
	var addrs []netip.Addr
	for _, to := range pods {
		if to.ID() == p.ID() {
			continue
		}
		for _, a := range to.Addrs {
			pings = append(pings, Ping{From: p.ID(), To: to.ID(), Addr: a})
			addrs = append(addrs, a)
		}
	}
	echoes, err := p.PingAll(ctx, addrs, timeout)
	if err != nil {
		return nil, err
	}
	for i, e := range echoes {
		if pings[i].RTT = e.RTT; e.Err != nil {
			pings[i].Error = e.Err.Error()
		}
	}
	return pings, nil
}

// ID is the pod's name in the lab: node1/pod1.
func (p *Pod) ID() string { return p.Node.Name + "/" + p.Name }

// rekeyTimeout is when WireGuard repeats a handshake that was lost: after its REKEY_TIMEOUT and a third of a second. Two
// nodes that begin one at the same moment lose both, and here each pings all others at once.
const rekeyTimeout = 5*time.Second + 334*time.Millisecond

// Converge repeats the matrix until every ping is answered or the limit has passed, and returns the last one;
// without a limit that is one Matrix. It can take a few: an agent is ready when its own lease stands, and learns
// of its peers a moment later. A WireGuard lab may take two handshakes longer.
func (l *Lab) Converge(ctx context.Context, limit time.Duration) ([]Ping, error) {
	if limit <= 0 {
		return l.Matrix(ctx)
	}
	if l.spec.Backend == "wireguard" {
		limit += 2 * rekeyTimeout
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last []Ping
	patience := 50 * time.Millisecond // at first: what is missing is mostly a route that is about to come
	err := poll(limited, 20*time.Millisecond, func() (bool, error) {
		pings, err := l.matrix(ctx, patience)
		last, patience = pings, min(2*patience, time.Second)
		return !slices.ContainsFunc(pings, func(p Ping) bool { return !p.OK() }), err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = nil // what is still missing stands in the matrix
	}
	return last, err
}
