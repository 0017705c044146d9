package locate

import (
	"fmt"
	"slices"
)

// Judge returns where packets of a flow are lost, and what loses them. mistaken has what makes packets go to a wrong
// host, by the host that it is at, which need not be on the path.
func Judge(f Flow, hosts []Host, mistaken map[string][]Object) Loss {
	j := judgement{flow: f, path: slices.Clone(f.Path), hosts: map[string]Host{}, mistaken: mistaken}
	for _, h := range hosts {
		j.hosts[h.Name] = h
	}
	if j.isAnswered() {
		j.back = true
		slices.Reverse(j.path)
	}
	j.follow()
	return j.blame()
}

// judgement is a flow that is judged: one direction of it.
type judgement struct {
	flow  Flow
	path  []string // hosts in the order in which packets meet them
	back  bool     // the answer is followed
	hosts map[string]Host

	mistaken map[string][]Object

	at   string // the last host that saw a packet, or the first if none did
	next string // the host that should have seen it next; empty: none, it is where it should be
	last *Seen  // nil: nobody saw any

	isMisled bool // at gave the packet a MAC that nobody has
}

// isAnswered reports whether an answer was seen anywhere: then it is the answer that is lost. One that came to the sender
// although the receiver was never asked is somebody else's, and it is the question that is lost.
func (j *judgement) isAnswered() bool {
	answers := func(s Seen) bool { return s.Back && !s.IsNeighbour() && s.Size >= j.flow.Size }
	asks := func(s Seen) bool { return !s.Back && !s.IsNeighbour() }
	sender, receiver := j.hosts[j.path[0]], j.hosts[j.path[len(j.path)-1]]
	came := slices.ContainsFunc(sender.Seen, func(s Seen) bool { return answers(s) && !s.Out })
	if came && receiver.Name != "" && !slices.ContainsFunc(receiver.Seen, asks) {
		return false
	}
	for _, h := range j.hosts {
		if slices.ContainsFunc(h.Seen, answers) {
			return true
		}
	}
	return false
}

// isOf reports whether the packet is of the direction that is followed, and of those that are lost.
func (j *judgement) isOf(s Seen) bool {
	return s.Back == j.back && !s.IsNeighbour() && s.Size >= j.flow.Size
}

// follow finds the last place that saw a packet.
func (j *judgement) follow() {
	j.at = j.path[0]
	if !j.back {
		j.at = j.flow.sender()
	}
	for i, name := range j.path {
		h := j.hosts[name]
		for k, s := range h.Seen {
			if j.isOf(s) {
				j.at, j.last = name, &h.Seen[k]
			}
		}
		if j.at == name && i+1 < len(j.path) {
			j.next = j.path[i+1]
		} else if j.at == name {
			j.next = ""
		}
	}
}

// isLeaving reports whether the packet was seen to leave the host for the next one.
func (j *judgement) isLeaving() bool { return j.last != nil && j.last.Out && j.next != "" }

func (j *judgement) loss() Loss {
	l := Loss{Flow: j.flow, Back: j.back, Host: j.at, Last: "nowhere", Missing: j.missing()}
	if j.last != nil {
		l.Dev, l.Last = j.last.Dev, j.last.String()
	}
	return l
}

// missing names the place where the packet should have been seen next.
func (j *judgement) missing() string {
	switch {
	case j.last == nil:
		return "any device of " + j.at
	case j.isLeaving():
		return j.next
	case j.next == "":
		return fmt.Sprintf("a socket of %s", j.at)
	}
	return fmt.Sprintf("a device of %s on the way to %s", j.at, j.next)
}
