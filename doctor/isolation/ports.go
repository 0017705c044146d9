package isolation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/policy"
)

// Ports are ports of a protocol. Without a protocol they are everything, and without a port all of the protocol's.
type Ports struct {
	Protocol    policy.Protocol
	First, Last uint16
}

// protocols are those that policies can name, by IANA's numbers.
var protocols = map[string]policy.Protocol{"6": policy.TCP, "17": policy.UDP, "132": policy.SCTP}

// parsePorts reads "tcp" and "80", or "100-200".
func parsePorts(protocol, span string) (p Ports, ok bool) {
	first, last, isSpan := strings.Cut(span, "-")
	if !isSpan {
		last = first
	}
	a, err := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	p = Ports{Protocol: policy.Protocol(strings.ToUpper(protocol)), First: uint16(a), Last: uint16(b)}
	known := slices.Contains([]policy.Protocol{policy.TCP, policy.UDP, policy.SCTP}, p.Protocol)
	return p, err == nil && err2 == nil && known
}

// has reports whether a connection goes to one of the ports.
func (p Ports) has(protocol policy.Protocol, port uint16) bool {
	return p.Protocol == "" || p.Protocol == protocol && (p.Last == 0 || p.First <= port && port <= p.Last)
}

// String is "TCP 80", "TCP 100–200", "UDP" or "everything".
func (p Ports) String() string {
	switch {
	case p.Protocol == "":
		return "everything"
	case p.Last == 0:
		return string(p.Protocol)
	case p.First == p.Last:
		return fmt.Sprintf("%s %d", p.Protocol, p.First)
	}
	return fmt.Sprintf("%s %d–%d", p.Protocol, p.First, p.Last)
}

// Allows reports whether a connection passes; also if nothing is known of the rules.
func (v Verdict) Allows(protocol policy.Protocol, port uint16) bool {
	return v.Unread || slices.ContainsFunc(v.Allowed, func(p Ports) bool { return p.has(protocol, port) })
}

// All reports whether every connection passes.
func (v Verdict) All() bool {
	return v.Unread || slices.Contains(v.Allowed, Ports{})
}
