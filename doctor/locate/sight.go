package locate

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/packet"
)

// Flow is an exchange of packets of which some were lost.
type Flow struct {
	Src, Dst netip.Addr
	Proto    string // icmp, tcp, udp
	Port     uint16 // of the receiver; 0: none
	Size     int    // bytes: only packets of this size or more are lost; 0: all are
	Sent     string // what was sent, for people: "full-size ICMP from node1/pod1 to node2/pod1"
	Error    string // what the sender was told
	Twice    bool   // nothing is lost, and an answer came twice
	// ByNode reports whether a node sends for its pods: in the name of one, whose packets come into the second host of the path by
	// the device In, or in its own.
	ByNode bool
	In     string
	// Path are the hosts from the sender to the receiver.
	Path []string
	// Outer are the underlay's addresses of the sender's and the receiver's node; invalid: both are on one node.
	Outer [2]netip.Addr
	// Echo is how the data of an echo request begins, by which packets are known whose address was translated.
	Echo string `json:"-"`
	// Exit is the sender's node, if the receiver is outside of the cluster, and Mask the address that packets are to leave it
	// with; invalid: the sender's own.
	Exit string
	Mask netip.Addr
}

// Seen is a packet of a flow on a device.
type Seen struct {
	packet.Sighting
	Back bool // it is of the answer
	// Asks and Tells are the addresses of ARP and neighbour discovery: who is asked for, and who answers. A packet of
	// the flow has neither.
	Asks, Tells netip.Addr
	// MACs are the receivers' of each Ethernet header, the outermost first; SrcMAC is the outermost sender's.
	MACs   []string
	SrcMAC string
	Size   int // bytes of the IP packet
}

// IsNeighbour reports whether the packet is not of the flow, but finds the way for it.
func (s Seen) IsNeighbour() bool { return s.Asks.IsValid() || s.Tells.IsValid() }

// protos are the numbers of the protocols of probes, without ICMP's of the two families.
var protos = map[byte]string{1: "icmp", 58: "icmp", 6: "tcp", 17: "udp"}

// See reports whether a packet is of the flow, or finds the way for it, and what it says.
func (f Flow) See(p packet.Sighting) (s Seen, ok bool) {
	s.Sighting = p
	frame := p.Frame
	for _, l := range frame.Layers {
		if l.Kind == "eth" {
			s.MACs = append(s.MACs, l.To)
			s.SrcMAC = cmp.Or(s.SrcMAC, l.From)
		}
	}
	if arp, ok := frame.Last("arp"); ok {
		s.Asks = arp.Dst
		if arp.Info == "reply" {
			s.Asks, s.Tells = netip.Addr{}, arp.Src
		}
		return s, true
	}
	ip, isIP := frame.Last("ip")
	if icmp, ok := frame.Last("icmp"); ok && icmp.Dst.IsValid() {
		s.Asks = icmp.Dst
		if ip.Src == icmp.Dst {
			s.Asks, s.Tells = netip.Addr{}, icmp.Dst
		}
		return s, true
	}
	if !isIP || ip.Proto != 0 && protos[ip.Proto] != f.Proto && !isTunnel(frame) {
		return s, false
	}
	s.Size = ip.Size
	if is, known := f.isEcho(frame); known {
		s.Back = frame.IsReply()
		return s, is
	}
	switch {
	case ip.Src == f.Src && ip.Dst == f.Dst, isTunnel(frame) && ip.Src == f.Outer[0] && ip.Dst == f.Outer[1]:
		return s, true
	case ip.Src == f.Dst && ip.Dst == f.Src, isTunnel(frame) && ip.Src == f.Outer[1] && ip.Dst == f.Outer[0]:
		s.Back = true
		return s, true
	}
	return s, false
}

// isTunnel reports whether the frame holds a packet that is encrypted.
func isTunnel(f packet.Frame) bool {
	_, wireguard := f.Last("wireguard")
	ip, _ := f.Last("ip")
	return wireguard || ip.Proto == protoESP
}

// protoESP is IPsec's (RFC 4303).
const protoESP = 50

// Drop is a place in the kernel that dropped packets.
type Drop struct {
	Host      string `json:"host"`
	Dev       string `json:"dev"`
	Reason    string `json:"reason"`   // a name of enum skb_drop_reason
	Function  string `json:"function"` // of the kernel
	Back      bool   `json:"back"`     // of the answer
	Neighbour bool   `json:"-"`        // of ARP or neighbour discovery
	Packets   int    `json:"packets"`
	Frame     string `json:"frame"` // the headers of the first one, without MAC addresses and TTL
	// Unheard is what did not listen for a packet between nodes: "no VXLAN listens on port 8472".
	Unheard string `json:"unheard,omitempty"`
	// Limit is what the machine has run out of, if the reason means just one thing.
	Limit Object `json:"-"`
}

func (d Drop) String() string {
	text := d.Reason
	if d.Function != "" {
		text += " in " + d.Function
	}
	if d.Dev != "" {
		text += ", on " + d.Dev
	}
	return text
}

// Hit is a firewall rule, or a chain's policy, that packets met.
type Hit struct {
	Host    string
	Object  Object
	Verdict string // drop, reject, queue, accept, continue, jump, policy drop, …
	// Stops reports whether the packet ends here: it is dropped or rejected, or queued where nobody listens.
	Stops bool
	// Rewrote is what the rule made of the packet: "ttl 64 to 1", "copied"; empty: nothing.
	Rewrote  string
	Effect   Effect     // of this what judgements ask for
	Counted  bool       // by a legacy table's counter, which counts packets of others, too
	Hook     string     // prerouting, forward, input, output, postrouting, ingress, egress
	Family   string     // of the table: ip, ip6, inet, bridge, arp, netdev
	In, Out  string     // devices
	Src, Dst netip.Addr // of the packet when it met the rule; invalid: it is no IP packet, or not known
	Proto    byte
}

// sender returns the host that sends.
func (f Flow) sender() string {
	if f.In != "" {
		return f.Path[1]
	}
	return f.Path[0]
}

// StoppedAtNode returns the rule that stopped a packet, or its answer, because a node sent it for a pod: what pods send is
// forwarded, and does not meet the rules for what the node itself sends and gets. A rule that stops full packets alone also stops
// those that carry pods': they are larger, and the node's own.
func (f Flow) StoppedAtNode(hosts []Host) (Hit, bool) {
	if !f.ByNode || f.Size > 0 && f.Outer[0].IsValid() {
		return Hit{}, false
	}
	for _, h := range hosts {
		i := slices.IndexFunc(h.Hits, func(h Hit) bool {
			return h.Stops && h.Family != "bridge" && (h.Hook == "output" && h.Src == f.Src || h.Hook == "input" && h.Dst == f.Src)
		})
		if h.Name == f.sender() && i >= 0 {
			return h.Hits[i], true
		}
	}
	return Hit{}, false
}

// Effect is what a rule made of a packet.
type Effect struct {
	Copies bool // it sent another packet like this one
	Source bool // it gave the packet another source, and altered nothing else
	Marks  bool
	Mark   uint32         // that the packet got, if it is known
	To     netip.AddrPort // the new destination; the port is 0 if it stays
}

// Host is what was seen in one network namespace on the path.
type Host struct {
	Name    string
	Seen    []Seen // in the order of time
	Drops   []Drop
	Hits    []Hit
	Unusual []Object // what can lose packets there, and is not in a namespace that nobody altered
	MACs    []string // of its devices
	Routed  []Routed // how it routes the flow's packets
	// Neighbours are all entries of its neighbour table, usual or not.
	Neighbours []Object
}

// Routed is a route that a packet of the flow takes in a namespace, or the policy rule that chose its table.
type Routed struct {
	Object  Object // its Usual is empty if it is usual
	Back    bool   // it is of the answer
	Refuses bool   // the kernel does not let the packet pass
	Missing bool   // there is no route: Object says what for
	Outer   bool   // it is for the packets of the tunnel
	Reverse bool   // it is of the way back to the sender, which the reverse path filter looks for
}
