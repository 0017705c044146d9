package enforce

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// flush deletes all that the kernel has, and lets it take plans of so many changes only; 0: all.
func (r *run) flush(most int) {
	r.kernel.mu.Lock()
	r.kernel.state, r.kernel.plans, r.kernel.most = netstate.State{}, nil, most
	r.kernel.mu.Unlock()
	r.kernel.events <- struct{}{}
}

// TestClosing: after a flush the first plan is a small one, with which packets of isolated pods are dropped, and no others. While
// the kernel refuses all rules, that stays.
func TestClosing(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		isolated, all := map[netip.Addr]bool{}, len(r.kernel.state)
		for _, o := range r.kernel.state {
			if e, ok := o.(netstate.Element); ok && e.Set == "self" {
				isolated[e.Prefix.Addr()] = true
			}
		}
		if len(isolated) == 0 {
			r.Fatal("no pod is isolated: nothing is tested")
		}
		r.flush(all / 2)
		r.settle()
		if len(r.kernel.plans) == 0 {
			r.Fatal("nothing was written after the flush, all rules at once were refused")
		}
		r.closed(isolated)
		if err := r.Enforced(); err == nil {
			r.Error("policies count as enforced while only a part of them is")
		}
		r.kernel.mu.Lock()
		r.kernel.most = 0
		r.kernel.mu.Unlock()
		r.flush(0)
		r.settle()
		r.check("after the flush")
		if n := len(r.kernel.plans); n != 3 {
			r.Errorf("%d plans, want one that closes, one of all, and another when nothing is in doubt any more", n)
		}
	})
}

// closed checks that the kernel has what drops the packets of some addresses, and of no others.
func (r *run) closed(isolated map[netip.Addr]bool) {
	r.Helper()
	found := map[netip.Addr]bool{}
	for _, o := range r.kernel.state {
		switch o := o.(type) {
		case netstate.Hook:
			if o.Family != netstate.Ethernet && !strings.HasSuffix(o.Rules, "saddr @closed counter drop\ndaddr @closed counter drop") {
				r.Errorf("a hook does not close: %s", o)
			}
		case netstate.Element:
			switch {
			case o.Dev != "": // a port's
			case o.Set != "closed":
				r.Errorf("there is %s", o)
			default:
				found[o.Prefix.Addr()] = true
			}
		case netstate.Set:
			if o.Family != netstate.Ethernet && o.Name != "closed" {
				r.Errorf("there is %s", o)
			}
		}
	}
	for a := range isolated {
		if !found[a] {
			r.Errorf("%s is isolated, and not closed", a)
		}
	}
	if len(found) != len(isolated) {
		r.Errorf("%d addresses are closed, want %d", len(found), len(isolated))
	}
}

// TestClosingRefused: where the kernel refuses to close, all rules are written nevertheless.
func TestClosingRefused(t *testing.T) {
	test(t, &fakeKernel{refuseSet: "closed"}, func(r *run) {
		r.protect()
		r.sync()
		r.check("although nothing could be closed before")
	})
}
