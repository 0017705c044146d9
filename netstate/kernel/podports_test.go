package kernel

import (
	"context"
	"slices"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/netstatetest"
)

// TestPodPorts lists ports by their marks, and hears of each that comes, goes or is marked anew. One that loses its mark is
// kept. What is done before List is called is in it.
func TestPodPorts(t *testing.T) {
	h := fresh(t)
	ports, err := OpenPodPorts()
	if err != nil {
		t.Fatal(err)
	}
	defer ports.Close()
	ctx, cancel := context.WithCancel(t.Context())
	events, err := ports.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	event := func() bool {
		t.Helper()
		return netstatetest.Quiet(t, events, 5*gather)
	}
	_, want := portsWanted(t, h, withAddrs)
	if event() {
		t.Error("an event before anybody has listed ports")
	}
	check := func(want ...netstate.Port) {
		t.Helper()
		got, err := ports.List()
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
	check(want[:]...)
	if want[0].Addrs != "10.244.1.2 fd00:10:244:1::2" {
		t.Errorf("the mark has %q", want[0].Addrs)
	}
	for _, test := range []struct {
		command string
		news    bool
	}{
		{"ip link set veth02 mtu 1400", false},
		{"ip link set veth02 mtu 1450", false},
		{"ip link set eveth02 down", false},
		{"ip link add other0 type veth peer name other0p", false},
		{"ip link set other0 master cni0", false},
		{"ip link del other0", false},
		{"ip link set veth02 alias somebody's", true},
		{"ip link del veth03", true},
	} {
		run(t, h, test.command)
		if test.news {
			hinted(t, events)
			event() // until nothing more comes
		} else if event() {
			t.Errorf("%s: it is news", test.command)
		}
	}
	unmarked := func(p netstate.Port) netstate.Port {
		p.Extra = netstate.Unmarked
		return p
	}
	kept := unmarked(want[0])
	check(kept)
	late := podPort(t, h, "veth04", nil)
	check(kept, late)
	run(t, h, "ip link set veth04 alias somebody's")
	check(kept, unmarked(late))

	if err := ports.hears.SetReadBuffer(1); err != nil {
		t.Fatal(err)
	}
	ports.mu.Lock() // nobody reads
	for range 10 {
		run(t, h, "ip link set veth04 mtu 1400", "ip link set veth04 mtu 1450")
	}
	run(t, h, "ip link del veth04")
	ports.mu.Unlock()
	hinted(t, events) // that messages were lost is news
	check(kept)
	cancel()
	for range events { // until it is closed
	}
}
