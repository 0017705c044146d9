package faults

import (
	"context"
	"testing"
	"time"

	"github.com/twill-net/twill/agent/checksum"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/kernel"
)

// TestBrokenNIC: pings pass and TCP does not, until the kernel computes the checksums; the agent's probe sees that, and
// only that.
func TestBrokenNIC(t *testing.T) {
	l := labtest.Up(t, lab.Spec{Name: "nic", Backend: "vxlan", Store: lab.File, Family: lab.Dual, Nodes: 2, Pods: 1})
	node, peer := l.Nodes()[0], l.Nodes()[1]
	probe := func(want checksum.Result) {
		t.Helper()
		for _, subnet := range peer.Subnets() {
			err := node.Do(func() error {
				began := time.Now()
				got, err := checksum.Probe(t.Context(), subnet.Addr())
				if got != want {
					t.Errorf("%s: got %d after %s, want %d", subnet.Addr(), got, time.Since(began), want)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	connects := func(want bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		from, to := node.Pods()[0], peer.Pods()[0]
		for _, f := range l.Spec().Families() {
			if _, err := from.Ping(t.Context(), host.Ping{To: to.Addr(f)}); err != nil {
				t.Error(err)
			}
			if _, err := from.Send(ctx, to.Host, to.Addr(f), 100_000); (err == nil) != want {
				t.Errorf("TCP over IPv%s: %v, want success to be %t", f, err, want)
			}
		}
	}
	offload := func(on bool) {
		t.Helper()
		err := node.Do(func() error {
			k, err := kernel.New(nil)
			if err != nil {
				return err
			}
			defer k.Close()
			want := netstate.NewState(netstate.Offload{Dev: "flannel.1", On: on}, netstate.Offload{Dev: "flannel-v6.1", On: on})
			return k.Apply(t.Context(), netstate.Diff(want, nil))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	probe(checksum.Intact)
	connects(true)
	if err := BreakChecksums(l, node, 8472); err != nil {
		t.Fatal(err)
	}
	probe(checksum.Broken)
	connects(false)
	offload(false)
	probe(checksum.Intact)
	connects(true)
	offload(true)
	connects(false)
	if err := Restore(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	probe(checksum.Intact)
	connects(true)
}
