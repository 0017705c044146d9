package netstate

import (
	"fmt"
	"net/netip"
)

// Direction is the direction of packets.
type Direction uint8

// The directions. Forwarded packets are also looked up as outgoing ones.
const (
	In Direction = iota
	Out
	Fwd
)

func (d Direction) String() string { return [...]string{"in", "out", "fwd"}[d] }

// Twill's IPsec policies have the priorities from PolicyPriority on, PolicyPriorities in number. Of two policies
// that match a packet the one with the lower number decides.
const PolicyPriority, PolicyPriorities = 116000, 10

// Policy is what IPsec does with packets (xfrm). Slot: direction, source and destination. Mark: its priority, which is
// from PolicyPriority on. Cascade: none; it stands without any key exchange, and then nothing that it matches passes.
type Policy struct {
	Dir      Direction
	Src, Dst netip.Prefix
	Priority int
	Block    bool
	From, To netip.Addr // ends of the ESP tunnel; invalid: none, packets pass as they are
	ReqID    int        // of the security association
	Optional bool       // packets that came without the tunnel pass too
	Extra    string
}

// Key implements Object.
func (p Policy) Key() Key {
	return Key{Kind: KindPolicy, Name: p.Dir.String() + " " + p.Src.String(), Prefix: p.Dst}
}

func (p Policy) String() string {
	tunnel := ""
	if p.From.IsValid() {
		tunnel = fmt.Sprintf("esp %s to %s reqid %d", p.From, p.To, p.ReqID)
	}
	return words("policy", p.Dir.String(), "src", p.Src.String(), "dst", p.Dst.String(), "priority",
		fmt.Sprint(p.Priority), flag(p.Block, "block"), tunnel, flag(p.Optional, "optional"), p.Extra)
}
