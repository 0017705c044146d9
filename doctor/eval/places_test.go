package eval

import (
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab/faults"
)

// ends is the place on the victim at which trace has to stop, by fault. With the faults that are not here packets arrive.
var ends = map[string][]string{
	"pod's interface":           {"pod-unplugged", "pod-link-down"},
	"bridge":                    {"bridge-down", "bridge-address"},
	"prerouting rules":          {"raw-drop"},
	"forwarding":                {"ip-forward-off", "device-forwarding"},
	"policy rules":              {"policy-rule"},
	"more specific route":       {"route-shadowed"},
	"route":                     {"route-deleted", "route-blackholed", "route-gateway", "route-gateway-hostgw", "routes-flushed"},
	"overlay device":            {"vtep-deleted", "vtep-down", "vtep-foreign", "port-taken"},
	"overlay device's address":  {"vtep-address"},
	"neighbour":                 {"neighbour-deleted", "neighbour-altered", "vtep-mac"},
	"forwarding database":       {"fdb-deleted", "fdb-altered"},
	"forward rules":             {"forward-drop", "forward-reject", "forward-policy", "forward-other-table"},
	"postrouting rules":         {"mangle-drop"},
	"output rules":              {"udp-out-filtered"},
	"input rules":               {"udp-in-filtered", "input-policy"},
	"underlay":                  {"underlay-down", "underlay-address-lost"},
	"node's address":            {"underlay-address-changed"},
	"way to the node":           {"underlay-blackhole"},
	"neighbour on the underlay": {"underlay-neighbour"},
	"between the nodes":         {"udp-filtered-behind", "udp-filtered-ahead", "peer-unplugged"},
}

// endsElsewhere are the exceptions, by lab and fault; none: packets arrive there.
var endsElsewhere = map[string]string{
	"host-gw/underlay-address-changed": "route",  // the kernel took the routes by the old address away
	"host-gw/underlay-blackhole":       "",       // a gateway on the link is not looked up again
	"vxlan-ipv6/vtep-address":          "",       // IPv6 routes do not go with an address
	"vxlan-ipv6/vtep-mtu":              "route",  // below 1280 bytes the kernel turns IPv6 off, and its routes go
	"vxlan-ipv6/bridge-mtu":            "bridge", // and its addresses
}

// mustEnd holds the place at which trace stopped against the one that the fault is at.
func mustEnd(t *testing.T, f faults.Fault, v *faults.Victim, stopped *doctor.Step) {
	t.Helper()
	want, known := endsElsewhere[strings.TrimPrefix(t.Name(), "TestFaults/")]
	for place, names := range ends {
		if !known && slices.Contains(names, f.Name) {
			want = place
		}
	}
	switch {
	case stopped == nil && want != "":
		t.Errorf("trace stops nowhere, want %s, %s", v.Node.Name, want)
	case stopped != nil && (stopped.Place != want || stopped.Node != v.Node.Name):
		t.Errorf("trace stops at %+v, want %s, %q", *stopped, v.Node.Name, want)
	}
}
