package target

import (
	"net/netip"
	"testing"
)

// TestPodAddress: the family of the other end counts, and pods on the node's own network have no way to trace.
func TestPodAddress(t *testing.T) {
	var p pod
	p.Status.Phase = "Running"
	p.Status.PodIPs = []struct{ IP string }{{"10.244.1.5"}, {"fd00::5"}}
	for _, c := range []struct{ text, other, want string }{
		{"web", "", "10.244.1.5"}, {"web", "fd00::9", "fd00::5"}, {"fd00::5", "", "fd00::5"}, {"10.244.1.6", "", ""}, {"node1", "10.244.1.5", ""},
	} {
		other, _ := netip.ParseAddr(c.other)
		got, ok := p.address(c.text, other)
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("%+v: %s, %v", c, got, ok)
		}
	}
	p.Spec.HostNetwork = true
	if got, ok := p.address("web", netip.Addr{}); ok {
		t.Errorf("on the node's network: %s", got)
	}
}
