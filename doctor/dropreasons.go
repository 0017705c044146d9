package doctor

import (
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
)

// dropReason explains one of the kernel's reasons for dropping a packet, and the findings that it belongs to.
type dropReason struct {
	text string
	kind kind
	also kind // another one
}

func (r dropReason) String() string {
	if r.kind == none {
		return r.text
	}
	return r.text + ": " + r.kind.page()
}

// dropReasons are those that overlay networks meet. VXLAN devices give theirs since Linux 6.12; before, they give
// NOT_SPECIFIED.
var dropReasons = map[string]dropReason{
	"NETFILTER_DROP":           {text: "a firewall rule refuses it; twillctl doctor names the rule", kind: forwardRejected, also: conntrackFull},
	"IP_RPFILTER":              {text: "the reverse path filter: the sender is routed through another device", kind: rpFilter},
	"IP_INNOROUTES":            {text: "no route leads to the receiver", kind: routeMissing},
	"IP_OUTNOROUTES":           {text: "no route leads to the receiver", kind: routeMissing},
	"IP_INADDRERRORS":          {text: "it is for another address, and forwarding is off", kind: ipForwardOff},
	"NEIGH_FAILED":             {text: "nobody answers for the next hop's address", kind: neighbourMissing},
	"NEIGH_CREATEFAIL":         {text: "the neighbour table is full", kind: neighbourMissing},
	"NEIGH_QUEUEFULL":          {text: "too many packets wait for a neighbour that does not answer", kind: neighbourMissing},
	"NEIGH_DEAD":               {text: "the neighbour entry was just deleted", kind: neighbourMissing},
	"NO_TX_TARGET":             {text: "the device has no forwarding entry for this MAC", kind: fdbMissing},
	"VXLAN_VNI_NOT_FOUND":      {text: "no device here has this network number (VNI)", kind: vtepAltered},
	"VXLAN_INVALID_HDR":        {text: "it is no VXLAN packet: another program sends to this UDP port", kind: udpPortTaken},
	"LOCAL_MAC":                {text: "this device's own MAC is its sender: a loop, or a cloned machine", kind: duplicateMAC},
	"MAC_INVALID_SOURCE":       {text: "this device's own MAC is its sender: a loop, or a cloned machine", kind: duplicateMAC},
	"OTHERHOST":                {text: "the frame is for another MAC than this device's", kind: vtepMAC},
	"PKT_TOO_BIG":              {text: "it is larger than the next device's MTU", kind: pathMTU},
	unspecified:                {text: "it gives no reason: a blackhole or prohibit route, or a part without reasons", kind: routeAltered},
	"BRIDGE_INGRESS_STP_STATE": {text: "the bridge, or this port of it, is down", kind: bridgeDown},
	"NO_SOCKET":                {text: "no program listens on this port"},
	"UNHANDLED_PROTO":          {text: "the kernel does not handle this protocol here"},
	"DEV_READY":                {text: "the device is down", kind: bridgeDown},
	"UDP_CSUM":                 {text: "the UDP checksum is wrong: an offload of the card, perhaps", kind: tcpLost},
	"TCP_CSUM":                 {text: "the TCP checksum is wrong: an offload of the card, perhaps", kind: tcpLost},
	"IP_CSUM":                  {text: "the IP checksum is wrong", kind: tcpLost},
	"SKB_CSUM":                 {text: "the checksum is wrong: an offload of the card, perhaps", kind: tcpLost},
	"IPV6DISABLED":             {text: "IPv6 is disabled on the device", kind: sysctl},
	"TC_INGRESS":               {text: "a tc filter refuses it"},
	"TC_EGRESS":                {text: "a tc filter refuses it"},
	"XDP":                      {text: "an XDP program refuses it"},
	"QDISC_DROP":               {text: "the device's queue refuses it"},
	"CPU_BACKLOG":              {text: "a processor has more packets than it can handle"},
	"SOCKET_RCVBUFF":           {text: "the receiving program is too slow"},
	"IP_INVALID_SOURCE":        {text: "its source address cannot be here", kind: duplicateUnderlay},
	"IP_LOCAL_SOURCE":          {text: "its source is an address of this machine's own", kind: duplicateUnderlay},
	"TUNNEL_TXINFO":            {text: "the tunnel does not know where to send it", kind: fdbMissing},
	"RECURSION_LIMIT":          {text: "a tunnel leads into itself", kind: underlayUnreachable},
}

// unspecified is the reason of whatever has none, which says nothing.
const unspecified = "NOT_SPECIFIED"

// explains reports whether the finding is why a packet was lost at its node. It is not where the judgement has an object
// that what was seen of the packet speaks for.
func (f Finding) explains(node string, l locate.Loss) bool {
	at, _, _ := strings.Cut(l.Host, "/")
	if l.Unmasked && at == node && f.kind() == masqueradeMissing {
		return f.family == 0 || f.family == netstate.FamilyOf(l.Flow.Src)
	}
	if at != node || l.Exact || l.Likely || f.Severity == Intended || f.kind() == none || l.Drop == unspecified {
		return false
	}
	onPath := slices.ContainsFunc(l.Flow.Path, func(host string) bool { return host == f.peer || strings.HasPrefix(host, f.peer+"/") })
	if f.peer != "" && !onPath || f.port != "" || f.family != 0 && f.family != netstate.FamilyOf(l.Flow.Src) {
		return false
	}
	r := dropReasons[l.Drop]
	return f.kind() == r.kind || f.kind() == r.also
}

// explained adds losses to the findings of their nodes that explain them, and returns those that are left.
func explained(nodes []Diagnosis, losses []locate.Loss) (left []locate.Loss) {
	for _, l := range losses {
		if !slices.ContainsFunc(nodes, func(n Diagnosis) bool { return n.explaining(l) >= 0 }) {
			left = append(left, l)
			continue
		}
		for i := range nodes {
			nodes[i].take(l)
		}
	}
	return left
}

// explaining returns the place of the first finding that explains a loss, -1 if none does.
func (d *Diagnosis) explaining(l locate.Loss) int {
	return slices.IndexFunc(d.Findings, func(f Finding) bool { return f.explains(d.Node, l) })
}

// take adds a loss to the finding that explains it, if there is one. Who has the same findings keeps them as they are.
func (d *Diagnosis) take(l locate.Loss) {
	i := d.explaining(l)
	if i < 0 {
		return
	}
	d.Findings = slices.Clone(d.Findings)
	f := &d.Findings[i]
	f.Severity, f.Likely = Broken, true
	if more := "this lost " + l.Flow.Sent + ": " + l.Reason; len(f.More) < maxShown && !slices.Contains(f.More, more) {
		f.More = append(slices.Clone(f.More), more)
	}
}
