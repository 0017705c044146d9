package filter

import (
	"context"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/netstatetest"
)

// quiet is for how long no event may come.
const quiet = 100 * time.Millisecond

// event waits until no event comes, and reports whether any came.
func event(t *testing.T, events <-chan struct{}) bool {
	t.Helper()
	return netstatetest.Quiet(t, events, quiet)
}

// TestWatch: changes of others in our tables are events; our own and those of other tables are none.
func TestWatch(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	f := open(t)
	events, err := f.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	large := large(200, 20000)
	for i, own := range []func(){
		func() { settle(t, f, policies(t)) },
		func() { settle(t, f, large); settle(t, f, policies(t)) },
		func() { apply(t, f, netstate.Plan{{Want: netstate.Element{Set: "self", Prefix: pod(1)}}}) },
		func() { sh(t, "nft 'add table ip other; add table inet twill-policy; add chain ip other c'") },
		func() {
			if f.Apply(t.Context(), netstate.Plan{{Was: netstate.Element{Set: pods, Prefix: pod(9)}}}) == nil {
				t.Error("no error")
			}
			settle(t, f, policies(t))
		},
	} {
		if own(); event(t, events) {
			t.Errorf("change %d: an event", i)
		}
	}
	for _, foreign := range []string{
		"nft add element ip twill-policy pods-1 { 192.0.2.1 }",
		"nft insert rule ip6 twill-policy forward accept",
		"nft add chain ip twill-policy other",
		"nft 'add chain ip twill-policy forward { policy drop; }'",
		"nft 'add set ip6 twill-policy other { type mark; }'",
		"nft 'add table ip twill-policy { flags dormant; }'",
		"nft delete table ip twill-policy",
		"nft flush ruleset",
	} {
		sh(t, foreign)
		select {
		case <-events:
		case <-time.After(testwait.Limit):
			t.Errorf("%s: no event", foreign)
		}
		event(t, events) // one command is several changes
		if settle(t, f, policies(t)); event(t, events) {
			t.Errorf("%s: an event when it is mended", foreign)
		}
	}
}

// TestWatchEnds: the channel is closed when the context is done.
func TestWatchEnds(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	events, err := open(t).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case _, ok := <-events:
		if ok {
			t.Error("an event")
		}
	case <-time.After(testwait.Limit):
		t.Error("the channel is still open")
	}
}
