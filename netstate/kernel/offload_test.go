package kernel

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/netstatetest"
)

// TestWatchOffload: another value that somebody gives it is told, because it is polled.
func TestWatchOffload(t *testing.T) {
	for _, line := range []string{"ip link add ofl0 type veth peer name ofl1", "ip link set ofl0 up",
		"ip link add flannel.77 type vxlan id 77 dev ofl0 local 127.0.0.1 dstport 8477", "ip link set flannel.77 alias twill"} {
		if err := command(line); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = command("ip link del ofl0") })
	k := newKernel(t)
	want := netstate.NewState(netstate.Offload{Dev: "flannel.77"})
	have, err := k.Observe(t.Context(), want)
	if on := (netstate.Offload{Dev: "flannel.77", On: true}); err != nil || have[on.Key()] != on {
		t.Fatalf("a new device has %v, %v: want %s", have, err, on)
	}
	if err := k.Apply(t.Context(), netstate.Diff(want, netstate.State{})); err != nil {
		t.Fatal(err)
	}
	hints, err := k.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	netstatetest.Quiet(t, hints, 10*gather) // the changes of before are told
	if _, err := k.offloads.ethtool("flannel.77", unix.ETHTOOL_STXCSUM, 1); err != nil {
		t.Fatal(err)
	}
	hinted(t, hints) // the offload is on again
}
