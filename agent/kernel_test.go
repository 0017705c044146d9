package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// half is one of the two parts of a joined kernel.
type half struct {
	state netstate.State
	err   error
	plans []netstate.Plan
	hints chan struct{}
	ended context.Context
}

func (h *half) Apply(_ context.Context, p netstate.Plan) error {
	h.plans = append(h.plans, p)
	return h.err
}

func (h *half) Watch(ctx context.Context) (<-chan struct{}, error) {
	h.ended = ctx
	return h.hints, h.err
}

type netHalf struct{ half }

func (h *netHalf) Observe(context.Context, netstate.State) (netstate.State, error) {
	return h.state, h.err
}

type rulesHalf struct{ half }

func (h *rulesHalf) Observe(context.Context) (netstate.State, error) { return h.state, h.err }

func halves() (*netHalf, *rulesHalf) {
	return &netHalf{half{state: netstate.NewState(netstate.Sysctl{Name: "a", Value: "1"}), hints: make(chan struct{})}},
		&rulesHalf{half{state: netstate.NewState(netstate.Chain{Role: netstate.Forward}), hints: make(chan struct{})}}
}

// TestJoin: what is seen is of both parts, each gets its own changes and nothing else, and errors
// of either are returned.
func TestJoin(t *testing.T) {
	net, rules := halves()
	k := Join(net, rules)
	have, err := k.Observe(t.Context(), nil)
	if err != nil || len(have) != 2 {
		t.Errorf("saw %s, %v", have, err)
	}
	sysctl, chain := netstate.Change{Want: netstate.Sysctl{Name: "a", Value: "2"}}, netstate.Change{Was: netstate.Chain{Role: netstate.Forward}}
	must(t, errors.Join(k.Apply(t.Context(), netstate.Plan{sysctl}), k.Apply(t.Context(), netstate.Plan{chain}), k.Apply(t.Context(), netstate.Plan{sysctl, chain})))
	if want := []netstate.Plan{{sysctl}, {sysctl}}; !slices.EqualFunc(net.plans, want, slices.Equal) {
		t.Errorf("the network state got %v", net.plans)
	}
	if want := []netstate.Plan{{chain}, {chain}}; !slices.EqualFunc(rules.plans, want, slices.Equal) {
		t.Errorf("the firewall got %v", rules.plans)
	}
	for _, h := range []*half{&net.half, &rules.half} {
		h.err = errors.New("failed")
		if _, err := k.Observe(t.Context(), nil); !errors.Is(err, h.err) {
			t.Errorf("observe: %v", err)
		}
		if err := k.Apply(t.Context(), netstate.Plan{sysctl, chain}); !errors.Is(err, h.err) {
			t.Errorf("apply: %v", err)
		}
		if _, err := k.Watch(t.Context()); !errors.Is(err, h.err) || net.ended.Err() == nil {
			t.Errorf("watch: %v, and the subscription that there was goes on: %v", err, net.ended.Err())
		}
		h.err = nil
	}
}

// TestJoinWatches: hints of both parts come through, and when one subscription breaks all of it ends.
func TestJoinWatches(t *testing.T) {
	for _, breaks := range []string{"network", "firewall"} {
		net, rules := halves()
		hints, err := Join(net, rules).Watch(t.Context())
		must(t, err)
		got := func(what string, want bool) {
			t.Helper()
			select {
			case _, ok := <-hints:
				if ok != want {
					t.Errorf("%s: a hint %t, want %t", what, ok, want)
				}
			case <-time.After(testwait.Limit):
				t.Fatalf("%s: nothing came", what)
			}
		}
		for range 2 {
			net.hints <- struct{}{}
			got("network", true)
			rules.hints <- struct{}{}
			got("firewall", true)
		}
		net.hints <- struct{}{} // nobody waits for these
		net.hints <- struct{}{}
		rules.hints <- struct{}{}
		got("three at once", true)
		close(map[string]chan struct{}{"network": net.hints, "firewall": rules.hints}[breaks])
		for range hints { // at most one more
		}
		select {
		case <-net.ended.Done():
		case <-time.After(testwait.Limit):
			t.Error("the other subscription goes on")
		}
	}
}
