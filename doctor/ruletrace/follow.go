package ruletrace

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
)

// met is a rule or policy that one packet met.
type met struct {
	event
	rule    rule // its zero value: the chain's policy
	hook    string
	packet  packet
	rewrote []change
}

// verdict returns what the rule calls its verdict.
func (m *met) name() string {
	name := m.verdict.String()
	if m.kind == unix.NFT_TRACETYPE_POLICY {
		return "policy " + name
	}
	if own := m.rule.effect.verdict; own != "" {
		return own
	}
	return name
}

// final reports whether the packet ends here.
func (m *met) final(queues map[uint16]bool) bool {
	switch m.verdict.base() {
	case verdictDrop, verdictStolen:
		return true
	case verdictQueue:
		number, bypass := m.verdict.queue()
		return !bypass && !queues[number]
	}
	return false
}

// track is what is known of one packet on its way.
type track struct {
	hook    string
	packet  packet // as the newest message shows it
	mark    uint32
	writers []*met // rules since, and the one of that message, which may alter the packet
	ours    bool   // a Tracer marked it, or it is from or to an address of its pairs; others may trace too
}

// scope is what a Tracer's own packets are known by.
type scope struct {
	table string
	ends  map[netip.Addr]bool
}

func (s scope) has(e event) bool {
	src, dst := e.packet.addresses()
	return e.Table == s.table && e.Chain == markChain && e.handle != 0 || s.ends[src] || s.ends[dst]
}

// follow returns what packets met, in the order of the events. A rewriting rule is found by the first message after
// it that shows the packet's headers; the kernel shows them once in each base chain, after the first of its rules that
// matched.
func follow(events []event, set ruleset, own scope) []*met {
	tracks := map[uint32]*track{}
	var all []*met
	for _, e := range events {
		t := tracks[e.id]
		// A packet that had the mark before shows its headers in the chain that jumps to this one.
		if t == nil || e.isOurs() && e.Chain == markChain && !e.packet.empty() {
			t = &track{}
			tracks[e.id] = t
		}
		t.ours = t.ours || own.has(e)
		if m := t.step(e, set); m != nil && t.ours {
			all = append(all, m)
		}
		if v := e.verdict.base(); v == verdictDrop || v == verdictStolen {
			delete(tracks, e.id) // another packet may get this ID
		}
	}
	return all
}

// step takes the next event of a packet. It returns nil for what is no rule of anybody else.
func (t *track) step(e event, set ruleset) *met {
	if c := set.chains[e.Place]; c != nil && c.hook != "" {
		t.hook = c.hook
	}
	m := &met{event: e, rule: set.rule(e.Place, e.handle), hook: t.hook}
	if e.isOurs() || e.handle == 0 && (e.kind != unix.NFT_TRACETYPE_POLICY || e.verdict.base() != verdictDrop) {
		m = nil
	}
	before := *t
	if m != nil {
		t.writers = append(t.writers, m)
	}
	if e.mark != before.mark {
		t.blame(markChange(before.mark, e.mark))
	}
	t.mark = e.mark
	if !e.packet.empty() {
		for _, c := range changes(before.packet, e.packet) {
			t.blame(c)
		}
		t.packet, t.writers = e.packet, nil
		if m != nil { // translation comes after the chain
			t.writers = []*met{m}
		}
	}
	if m != nil {
		m.packet = t.packet
		if len(m.rewrote) > 0 {
			m.packet.network = before.packet.network // as the rule met it
		}
	}
	return m
}

// blame gives a change to the last rule that may have made it. If there is none, the kernel has: it decrements the TTL,
// and it translates the addresses of what belongs to a connection that a rule has translated before.
func (t *track) blame(c change) {
	for _, m := range slices.Backward(t.writers) {
		if m.rule.effect.alters(c) {
			m.rewrote = append(m.rewrote, c)
			return
		}
	}
}

// rewriting returns what the rule made of the packet, for people.
func (m *met) rewriting() string {
	var all []string
	for _, c := range m.rewrote {
		all = append(all, c.text)
	}
	if m.rule.effect.unseen != "" {
		all = append(all, m.rule.effect.unseen)
	}
	return strings.Join(all, ", ")
}

// made returns the same for judgements.
func (m *met) made() locate.Effect {
	e := locate.Effect{Copies: m.rule.effect.unseen == Copied, Source: len(m.rewrote) > 0}
	var to netip.Addr
	var port uint16
	for _, c := range m.rewrote {
		switch c.field.name {
		case "mark":
			e.Marks, e.Mark = true, binary.BigEndian.Uint32(c.is)
		case "daddr":
			to, _ = netip.AddrFromSlice(c.is)
		case "dport":
			port = binary.BigEndian.Uint16(c.is)
		}
		e.Source = e.Source && (c.field.name == "saddr" || c.field.name == "sport")
	}
	if to.IsValid() {
		e.To = netip.AddrPortFrom(to, port)
	}
	return e
}
