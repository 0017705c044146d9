package locate

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// suspect is an object that may lose the packet.
type suspect struct {
	host  string
	o     Object
	score int
	exact bool
}

// blame names what loses the packet: the rule that the kernel's trace shows to stop it; else what is unusual where
// it ends, of a kind that the kernel's reason is a clue to.
func (j *judgement) blame() Loss {
	l := j.loss()
	if h, ok := j.stopped(); ok {
		l.Host, l.By, l.Exact, l.Stopped, l.Likely = h.Host, h.Object, !h.Counted || j.isRules(h.Host), !h.Counted, true
		l.Reason = h.Verdict
		return l
	}
	if d, ok := j.exhausted(); ok {
		l.Host, l.By, l.Exact, l.Likely, l.Reason, l.Drop = d.Host, d.Limit, true, true, d.cause(), d.Reason
		return l
	}
	if s, ok := j.unmasked(); ok {
		l.Host, l.Dev, l.Last, l.Missing, l.By = s.Host, s.Dev, s.String(), j.path[len(j.path)-1], j.unmasking(s)
		l.Back, l.Exact, l.Likely, l.Unmasked = false, true, true, true
		return l
	}
	rewritten := j.rewritten() // up to the last place, which a wrong MAC moves
	misled := j.misled()
	d, dropped := j.drop()
	if dropped {
		l.Reason, l.Drop = d.cause(), d.Reason
		dropped = !j.isMisled // the place that drops it is innocent
	}
	if l.Unanswered = j.isGone() && !dropped && len(rewritten) == 0; l.Unanswered {
		l.By = j.written()
		return l
	}
	if o, route := j.deaf(d); o.Text != "" {
		l.By, l.Exact, l.Likely, l.Others = o, true, true, []Object{route}
		if d.Neighbour { // of a question, which devices without a use for it drop
			l.Reason, l.Drop = "", ""
		}
		return l
	}
	all := slices.Concat(misled, rewritten, j.taken(), j.routed(d))
	for _, name := range j.path {
		for _, o := range j.hosts[name].Unusual {
			if s, ok := j.suspect(name, o, d, dropped); ok {
				all = append(all, s)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b suspect) int { return cmp.Compare(b.score, a.score) })
	if len(all) == 0 || all[0].score < enough {
		if dropped {
			l.Host, l.Dev = d.Host, cmp.Or(d.Dev, l.Dev)
		}
		return l
	}
	l.Host, l.By, l.Exact, l.Likely = all[0].host, all[0].o, all[0].exact, all[0].score >= byReason
	for _, s := range all[1:] {
		if len(l.Others) < maxOthers && s.o != l.By && !slices.Contains(l.Others, s.o) {
			l.Others = append(l.Others, s.o)
		}
	}
	return l
}

// cause returns what the kernel says about a drop, and what it means of a packet between nodes.
func (d Drop) cause() string {
	text := strings.TrimSpace(d.Reason + " in " + d.Function)
	if d.Unheard != "" {
		text += ": " + d.Unheard + " at " + d.Host
	}
	return text
}

// enough is the score from which a suspect is named, and maxOthers how many more are.
const (
	enough    = 30
	maxOthers = 3
)

// The weights of what speaks for a suspect. They only have to order suspects of one loss: what the wire shows weighs
// most, then the kernel's reason, then the place.
const (
	byWire    = 100 // the packet itself shows it: a wrong MAC, a rewritten header
	byReason  = 50  // its kind is the first that the kernel's reason is a clue to
	byPlace   = 25  // its kind is the first that the place is a clue to
	perRank   = 3   // less for each kind that is likelier
	atDrop    = 30  // the kernel dropped the packet in its namespace
	atLast    = 20  // the packet was seen last in its namespace
	atNext    = 15  // the packet should have come there next
	aboutFlow = 15  // it is about addresses of the flow
	onPath    = 10  // its device saw the flow, or it is about all devices
	byWord    = 10  // its name says that it concerns the protocol
)

// stopped returns the rule that the trace shows to stop the packet: where it was seen last, else anywhere on its path, as
// not all packets of a connection need to be lost. A rule that only counted a packet comes after all others.
func (j *judgement) stopped() (Hit, bool) {
	for _, counted := range []bool{false, true} {
		for _, name := range []string{j.at, j.next} {
			for _, h := range j.hosts[name].Hits {
				if h.Stops && h.Counted == counted && j.concerns(h, j.back) {
					return h, true
				}
			}
		}
		for _, name := range j.path {
			for _, h := range j.hosts[name].Hits {
				if h.Stops && h.Counted == counted && (j.concerns(h, j.back) || j.concerns(h, !j.back)) {
					return h, true
				}
			}
		}
	}
	return Hit{}, false
}

// isRules reports whether the kernel says that a rule of the host dropped a packet of the flow.
func (j *judgement) isRules(host string) bool {
	return slices.ContainsFunc(j.hosts[host].Drops, func(d Drop) bool {
		c, ok := clueOf(d)
		return ok && c.kinds[0] == Rule
	})
}

// concerns reports whether the hit is of one direction of the flow, of its tunnel, or of ARP.
func (j *judgement) concerns(h Hit, back bool) bool {
	src, dst, outer := j.flow.Src, j.flow.Dst, j.flow.Outer
	if back {
		src, dst, outer[0], outer[1] = dst, src, outer[1], outer[0]
	}
	return !h.Src.IsValid() || h.Src == src || h.Dst == dst || h.Src == outer[0] && h.Dst == outer[1]
}

// drop returns the first drop of the direction that is followed, near the place that saw the packet last. If packets came
// all the way and back, only some are lost, and it is the first one anywhere.
func (j *judgement) drop() (Drop, bool) {
	places, anyDirection := []string{j.at, j.next}, j.isPartial()
	if anyDirection {
		places = j.path
	}
	for _, isNeighbour := range []bool{false, true} {
		for _, name := range places {
			for _, d := range j.hosts[name].Drops {
				isOther := d.Back != j.back && !isNeighbour && !anyDirection
				isSocket := d.Function == unwanted || anyDirection && ofSocket.MatchString(d.Function)
				if d.Neighbour == isNeighbour && !isOther && !isSocket {
					return d, true
				}
			}
		}
	}
	return Drop{}, false
}

// exhausted returns the first drop of the flow, in either direction, for want of something that the machine has run out of.
func (j *judgement) exhausted() (Drop, bool) {
	for _, name := range j.path {
		for _, d := range j.hosts[name].Drops {
			if d.Limit.Text != "" {
				return d, true
			}
		}
	}
	return Drop{}, false
}

// isPartial reports whether packets of the flow came to the receiver, and answers to the sender.
func (j *judgement) isPartial() bool { return j.back && j.next == "" && j.last != nil }

// unwanted is the function that drops each reply that no ping socket waits for: that of a probe is a raw one. Functions
// of sockets drop what comes twice, too.
const unwanted = "ping_rcv"

var ofSocket = regexp.MustCompile(`^_*(tcp|udp|raw|ping)[v46]*_`)

// suspect weighs what is unusual in a namespace.
func (j *judgement) suspect(host string, o Object, d Drop, dropped bool) (suspect, bool) {
	s := suspect{host: host, o: o}
	if o.Kind == Route || o.Kind == PolicyRule {
		return s, false // those that decide are judged by routed
	}
	about, ok := j.isAbout(host, o)
	if !ok || !j.isFamily(o) || permits(o) {
		return s, false
	}
	s.score = about
	place := j.place()
	rank := slices.Index(place.kinds, o.Kind)
	if rank >= 0 && fits(place, o) {
		s.score += byPlace - perRank*rank
	}
	if dropped {
		c, known := clueOf(d)
		if rank := slices.Index(c.kinds, o.Kind); known && rank >= 0 && fits(c, o) {
			s.score += byReason - perRank*rank
			s.exact = host == d.Host
		}
	}
	s.score += j.near(host, d, dropped) + j.root(host, o)
	if o.Kind == Sysctl && protocolWords[j.flow.Proto] != nil && protocolWords[j.flow.Proto].MatchString(o.Part) {
		s.score += byWord
	}
	return s, true
}

// permits reports whether the object is what routers and bridges are given, what lets more packets pass, and what is a consequence: neighbours that
// do not answer.
func permits(o Object) bool {
	if o.Kind != Sysctl {
		return o.Is("mcast_snooping", "0") || o.Is("txqueuelen", "0") || o.Is("hairpin", "on") ||
			o.Kind == Neighbour && o.Value == Failed
	}
	switch o.Part[strings.LastIndexByte(o.Part, '.')+1:] {
	case "ip_forward", "forwarding", "nf_conntrack_tcp_be_liberal":
		return o.Value == "1"
	case "accept_dad":
		return o.Value == "0"
	case "accept_ra":
		return true
	}
	return false
}

// root weighs what others follow from: a device that is down has no carrier, its port no state that forwards, and the
// routes through it are gone, as are those of IPv6 where the MTU is too small for it.
func (j *judgement) root(host string, o Object) int {
	switch {
	case o.Kind == Link && (o.Is(Down) || !j.flow.Src.Is4() && hasSmallMTU(o)):
		noRoute := slices.ContainsFunc(j.hosts[host].Routed, func(r Routed) bool { return r.Missing })
		noPort := slices.ContainsFunc(j.hosts[host].Unusual, func(p Object) bool {
			return p.Kind == BridgePort && p.Bridge == o.Dev && p.Is("state")
		})
		if noRoute || noPort {
			return byReason
		}
		return byPlace
	case o.Kind == Link && o.Is(NoCarrier):
		return -byWord
	}
	return 0
}

// fits reports whether a sysctl's name is one that the clue is about.
func fits(c clue, o Object) bool {
	return o.Kind != Sysctl || c.words == nil || c.words.MatchString(o.Part)
}

// place returns the clue that the place is where the packet ends.
func (j *judgement) place() clue {
	switch {
	case j.isMisled:
		return addressed
	case j.last == nil:
		return unsent
	case j.isLeaving():
		return unheard
	case j.next == "":
		return unanswered
	}
	return inside
}

func (j *judgement) near(host string, d Drop, dropped bool) int {
	switch {
	case dropped && d.Host == host:
		return atDrop
	case host == j.at:
		return atLast
	case host == j.next:
		return atNext
	}
	return 0
}

// isAbout weighs whether the object concerns the flow's addresses and devices; ok is false if it cannot.
func (j *judgement) isAbout(host string, o Object) (score int, ok bool) {
	if o.About.IsValid() {
		f := j.flow
		if !o.About.Contains(f.Src) && !o.About.Contains(f.Dst) && !o.About.Contains(f.Outer[0]) &&
			!o.About.Contains(f.Outer[1]) && o.Kind != Neighbour && o.Kind != FDB && o.Kind != Address {
			return 0, false
		}
		score += aboutFlow
	}
	if o.Dev == "" || j.last == nil && host == j.at { // no device saw what was never sent
		return score + onPath, true
	}
	for _, h := range j.hosts {
		if slices.ContainsFunc(h.Seen, func(s Seen) bool { return s.Dev == o.Dev }) {
			return score + onPath, true
		}
	}
	return score, true
}

// isFamily reports whether a sysctl can concern packets of the flow's address family. TCP's are IPv4's for both.
func (j *judgement) isFamily(o Object) bool {
	if o.Kind != Sysctl {
		return true
	}
	if j.flow.Src.Is4() {
		return !strings.HasPrefix(o.Part, "net.ipv6.")
	}
	return !strings.HasPrefix(o.Part, "net.ipv4.") || strings.HasPrefix(o.Part, "net.ipv4.tcp_")
}
