package eval

import (
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab/faults"
)

// ends is the place on the target at which trace has to stop, by fault. With the faults that are not here
// packets arrive.
var ends = map[string][]string{
	"pod's port":               {"pod-port-disabled"},
	"pod's neighbour entry":    {"pod-neighbour"},
	"device above the bridge":  {"device-taken"},
	"own route":                {"own-route-deleted", "own-route-blackholed"},
	"pod's interface":          {"pod-unplugged", "pod-link-down", "pod-link-deleted"},
	"queueing discipline":      {"vtep-qdisc"},
	"bridge":                   {"bridge-down", "bridge-deleted", "bridge-address"},
	"prerouting rules":         {"raw-drop"},
	"forwarding":               {"ip-forward-off", "device-forwarding"},
	"policy rules":             {"policy-rule"},
	"more specific route":      {"route-shadowed"},
	"route":                    {"route-deleted", "route-blackholed", "route-gateway", "route-gateway-hostgw", "routes-flushed"},
	"overlay device":           {"vtep-deleted", "vtep-down", "vtep-foreign", "port-taken", "wg-key-altered"},
	"overlay device's address": {"vtep-address"},
	"neighbour":                {"neighbour-deleted", "neighbour-altered", "vtep-mac"},
	"forwarding database":      {"fdb-deleted", "fdb-altered"},
	"forward rules": {"forward-drop", "forward-reject", "forward-engine", "forward-policy", "forward-other-table",
		"chain-added"},
	"postrouting rules":         {"mangle-drop"},
	"output rules":              {"udp-out-filtered"},
	"input rules":               {"udp-in-filtered", "input-policy"},
	"underlay":                  {"underlay-down", "underlay-address-lost"},
	"node's address":            {"underlay-address-changed"},
	"way to the node":           {"underlay-blackhole"},
	"neighbour on the underlay": {"underlay-neighbour"},
	"between the nodes":         {"udp-filtered-behind", "udp-filtered-ahead", "peer-unplugged", "peer-mover-down", "peer-readdressed"},
	"peer's record":             {"local-network"},
	"cloud": {"cloud-route-deleted", "cloud-route-taken", "cloud-peer-route-deleted", "cloud-table-full", "cloud-denied",
		"cloud-forwarding-off", "cloud-egress"},
	"peer's key": {"wg-peer-deleted", "wg-peer-altered"},
	agentPlace:   {"mover-down", "mover-port-taken"},
}

// endsElsewhere are the exceptions, by lab and fault; none: packets arrive there.
var endsElsewhere = map[string]string{
	"host-gw/underlay-address-changed":          "route",  // the kernel took the routes by the old address away
	"host-gw/underlay-blackhole":                "",       // a gateway on the link is not looked up again
	"vxlan-ipv6/vtep-address":                   "",       // IPv6 routes do not go with an address
	"vxlan-ipv6/vtep-mtu":                       "route",  // below 1280 bytes the kernel turns IPv6 off, and its routes go
	"vxlan-ipv6/bridge-mtu":                     "bridge", // and its addresses
	"vxlan-ipv6/bridge-renamed":                 "bridge", // its addresses went when it was down
	"udp-ipv6/bridge-renamed":                   "bridge",
	"udp-ipv6/vtep-address":                     agentPlace,
	"wireguard-kernel/underlay-address-changed": "", // peers answer at the new one
	"udp-ipv6/vtep-mtu":                         "route",
	"udp-ipv6/bridge-mtu":                       "bridge",
}

// agentPlace is where packets end whose agent was stopped, and does not move them: what comes after it on
// the way, they do not get to.
const agentPlace = "agent"

var beforeAgent = []string{"pod's interface", "pod's port", "bridge", "own route", "forwarding", "policy rules", "more specific route", "route", "overlay device",
	"overlay device's address", "forward rules", "postrouting rules", "underlay"}

// mustEnd holds the place at which trace stopped against the one that the fault is at.
func mustEnd(t *testing.T, f faults.Fault, v *faults.Target, stopped *doctor.Step) {
	t.Helper()
	_, lab, _ := strings.Cut(t.Name(), "/")
	want, known := endsElsewhere[lab]
	for place, names := range ends {
		if !known && slices.Contains(names, f.Name) {
			want = place
		}
	}
	if strings.HasPrefix(t.Name(), "TestFaultsOfUserspace/") && !known && !f.KeepAgent && !slices.Contains(beforeAgent, want) {
		want = agentPlace
	}
	switch {
	case stopped == nil && want != "":
		t.Errorf("trace stops nowhere, want %s, %s", v.Node.Name, want)
	case stopped != nil && (stopped.Place != want || stopped.Node != v.Node.Name):
		t.Errorf("trace stops at %+v, want %s, %q", *stopped, v.Node.Name, want)
	}
}
