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

// and returns the ports that both are. It is not ok if there are none.
func (p Ports) and(o Ports) (both Ports, ok bool) {
	switch {
	case p.Protocol == "":
		return o, true
	case o.Protocol == "":
		return p, true
	case p.Protocol != o.Protocol:
		return Ports{}, false
	case p.Last == 0:
		return o, true
	case o.Last == 0:
		return p, true
	}
	both = Ports{p.Protocol, max(p.First, o.First), min(p.Last, o.Last)}
	return both, both.First <= both.Last
}

// covers reports whether all of the other ports are among these.
func (p Ports) covers(o Ports) bool {
	both, ok := p.and(o)
	return ok && both == o
}

// Allows reports whether a connection passes; also if nothing is known of the rules.
func (v Verdict) Allows(protocol policy.Protocol, port uint16) bool {
	if v.Unread {
		return true
	}
	i := slices.IndexFunc(v.rules, func(r rule) bool { return r.has(protocol, port) })
	return i >= 0 && v.rules[i].allows
}

// All reports whether every connection passes.
func (v Verdict) All() bool {
	return v.Unread || len(v.Denied) == 0 && slices.Contains(v.Allowed, Ports{})
}
