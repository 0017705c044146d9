package doctor

import (
	"net/netip"
)

// Trouble is something outside the kernel that the agent says is wrong: backend.Trouble.
type Trouble struct {
	ID     string `json:"id"`
	Object string `json:"object"`
	Actual string `json:"actual"`
	Fix    string `json:"fix,omitempty"`
}

// right is how it should be, of each kind that the agent may report.
var right = map[kind]string{
	cloudForwardingOff: "it forwards", cloudOverlap: "a network of its own", cloudDenied: "the permission",
	cloudTableFull: "room for a route", cloudTableUnlisted: "it is kept, too", cloudRouteWrong: "nobody else writes it",
	cloudRouteMissing: "it is in the cloud's routing table", cloudPeerUnrouted: "a route to it",
}

// checkTroubles is about what the agent knows of the cloud's network. One that is newer than this program may know more.
func (e *exam) checkTroubles() {
	if e.Agent.Runner == nil {
		return
	}
	for _, t := range e.Agent.Runner.Troubles {
		k := kind(t.ID)
		switch expected, known := right[k]; {
		case !known:
		case k == cloudPeerUnrouted:
			e.findPeer(cloudPeerUnrouted, e.holder(t.Object), expected, t.Object+": "+t.Actual, "").says(t.Fix)
		default:
			e.find(k, t.Object, expected, t.Actual, "").says(t.Fix)
		}
	}
}

// holder returns the peer that holds a subnet, or the subnet.
func (e *exam) holder(subnet string) string {
	p, err := netip.ParsePrefix(subnet)
	if err != nil {
		return subnet
	}
	if name, ok := peersByPrefix(e.Lease.Snapshot)[p]; ok {
		return name
	}
	return subnet
}
