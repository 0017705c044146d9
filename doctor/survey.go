package doctor

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor/locate"
)

// Survey is the diagnosis of several nodes, and what became of probes between their pods.
type Survey struct {
	Schema int         `json:"schema"`
	First  *Finding    `json:"first,omitempty"` // the likeliest cause of all; nil: nothing is wrong
	Probes Probes      `json:"probes"`
	Lost   []Finding   `json:"lost"` // where probes are lost, the surest first
	Nodes  []Diagnosis `json:"nodes"`
	// Services are traces from a pod of each node to a Service, if one was asked about.
	Services []Trace  `json:"services,omitempty"`
	Silent   []string `json:"silent,omitempty"` // nodes that could not be asked, and why
}

// Probes counts exchanges of packets: ICMP, TCP and UDP, small and of full size, each there and back.
type Probes struct {
	Sent int `json:"sent"` // 0: none were
	Lost int `json:"lost"` // and nobody asked for it
	// Denied are lost, because network policies do not let them pass.
	Denied int `json:"denied,omitempty"`
	Late   int `json:"late,omitempty"` // came back only when they were sent again
	// Other reports whether they were sent from another address than the one that was asked about: what tables say of
	// that one stays true.
	Other    bool `json:"other,omitempty"`
	OnlyICMP bool `json:"onlyICMP,omitempty"` // a pod that cannot be entered sends no TCP and UDP
	// OnBehalf reports whether nodes sent them in the name of pods: what policies say of sending did not apply to them.
	OnBehalf bool     `json:"onBehalf,omitempty"`
	Seconds  float64  `json:"seconds"`
	Unread   []string `json:"unread,omitempty"` // what could not be watched, and why
	// Notes are what is to be known of the way to the outside, and is no fault.
	Notes []string `json:"notes,omitempty"`
}

// came reports whether packets came back, and none was lost that nobody asked for.
func (p Probes) came() bool { return p.Lost == 0 && p.Sent > p.Denied }

// kinds says what came back.
func (p Probes) kinds() string {
	if p.OnlyICMP {
		return "ICMP in both sizes: pods that may not be entered send nothing else"
	}
	return "in every protocol and size"
}

// and returns the probes of two nodes, which sent them at the same time.
func (p Probes) and(o Probes) Probes {
	p.Sent, p.Lost, p.Late, p.Seconds = p.Sent+o.Sent, p.Lost+o.Lost, p.Late+o.Late, max(p.Seconds, o.Seconds)
	p.Denied += o.Denied
	p.Other, p.OnlyICMP, p.OnBehalf = p.Other || o.Other, p.OnlyICMP || o.OnlyICMP, p.OnBehalf || o.OnBehalf
	for _, u := range o.Unread {
		if !slices.Contains(p.Unread, u) {
			p.Unread = append(p.Unread, u)
		}
	}
	for _, n := range o.Notes {
		if !slices.Contains(p.Notes, n) {
			p.Notes = append(p.Notes, n)
		}
	}
	return p
}

// NewSurvey puts together what was found. Real packets have the last word: what the tables of a node let expect is no
// more than a risk if all probes came back.
func NewSurvey(nodes []Diagnosis, silent []string, p Probes, lost Lost) Survey {
	s := Survey{Schema: Schema, Probes: p, Nodes: append([]Diagnosis{}, nodes...), Silent: silent}
	lost.Followed = explained(s.Nodes, lost.Followed)
	s.Lost = lost.findings()
	if p.came() {
		for i := range s.Nodes {
			s.Nodes[i].Findings = belieNode(s.Nodes[i].Findings)
		}
	}
	s.First = s.first()
	return s
}

// belieNode returns a node's findings after all probes came back: none of them keeps packets from passing.
func belieNode(found []Finding) []Finding {
	all := slices.Clone(found)
	for i := range all {
		if all[i].kind().rank() <= lastOfPath.rank() {
			all[i].Severity = Risk
		}
	}
	return all
}

// ofOwnPings are the kinds of findings that a node makes by pings of its own, which rules for its own packets may lose.
var ofOwnPings = []kind{peerUnanswered, udpSentUnanswered, udpNotSent, udpReplyDropped}

// MostPeersProbed is how many peers a node's probes go to.
const MostPeersProbed = 32

// belieOwn makes them risks where all pings for pods came back.
func belieOwn(found []Finding) {
	for i := range found {
		if slices.Contains(ofOwnPings, found[i].kind()) {
			found[i].Severity = Risk
		}
	}
}

// lastOfPath is the last of the kinds that break the path of packets.
const lastOfPath = bridgeAddressForeign

// first returns the likeliest cause: a lost packet whose cause is known or likely, else what the tables of a node show
// to be broken, else a lost packet whose place is known, else a risk.
func (s Survey) first() *Finding {
	var all []Finding
	all = append(all, s.Lost...)
	for _, n := range s.Nodes {
		all = append(all, n.Findings...)
	}
	all = slices.DeleteFunc(all, func(f Finding) bool { return f.Severity == Intended })
	if len(all) == 0 {
		return nil
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), byLikelihood(a, b))
	})
	return &all[0]
}

// byLikelihood orders findings as likely causes. Real packets that name an object count more than tables, and tables more
// than packets of which only the place is known. An altered fast path counts more than all: packets that took it are missed
// where nothing on the kernel's path explains it.
func byLikelihood(a, b Finding) int {
	return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.kind().rank(), b.kind().rank()))
}

func (f Finding) rank() int {
	switch {
	case f.kind() == fastPathAltered && f.Severity == Broken:
		return 0
	case f.kind() == packetLost || f.Likely:
		return 1
	}
	return 2
}

// unknownObject is the object of a finding about a loss of which only the place is known.
const unknownObject = "not known"

// Failed reports whether anything is wrong, or a node could not be asked.
func (s Survey) Failed() bool {
	return s.First != nil || len(s.Silent) > 0 || s.Probes.Lost > 0 || slices.ContainsFunc(s.Services, Trace.Failed)
}

// WriteJSON writes the survey for programs.
func (s Survey) WriteJSON(w io.Writer) error { return writeJSON(w, s) }

// WriteText writes the survey for people: what probes show, then each node.
func (s Survey) WriteText(w io.Writer) error {
	var b strings.Builder
	switch p := s.Probes; {
	case p.Sent == p.Denied:
	case p.Lost == 0 && p.Late > 0:
		fmt.Fprintf(&b, "✓ %s probes of pods came back, %d of them only when they were sent again (%.1f s)\n",
			p.returned(), p.Late, p.Seconds)
	case p.Lost == 0:
		fmt.Fprintf(&b, "✓ %s probes of pods came back, in every protocol and size (%.1f s)\n", p.returned(), p.Seconds)
	default:
		fmt.Fprintf(&b, "✗ %d of %d probes of pods are lost (%.1f s)\n", p.Lost, p.Sent, p.Seconds)
	}
	s.Probes.writeDenied(&b)
	for i, f := range s.Lost {
		f.write(&b, i == 0 && s.First != nil && s.First.ID == f.ID)
	}
	s.Probes.writeUnread(&b)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	for _, t := range s.Services {
		if err := t.WriteText(w); err != nil {
			return err
		}
	}
	for _, n := range s.Nodes {
		n.Probed, n.lost = n.Probed || s.Probes.came(), s.Probes.Lost > 0
		if err := n.WriteText(w); err != nil {
			return err
		}
	}
	for _, silent := range s.Silent {
		fmt.Fprintln(w, "✗", silent)
	}
	return nil
}

// returned says how many probes came back, if none was lost that nobody asked for.
func (p Probes) returned() string {
	if p.Denied > 0 {
		return fmt.Sprint(p.Sent - p.Denied)
	}
	return fmt.Sprint("all ", p.Sent)
}

// writeDenied writes how many probes network policies deny.
func (p Probes) writeDenied(b *strings.Builder) {
	if p.Denied > 0 {
		fmt.Fprintf(b, "– %d of %d probes are denied by network policies\n", p.Denied, p.Sent)
	}
}

// writeUnread writes what is not known of the probes.
func (p Probes) writeUnread(b *strings.Builder) {
	for _, n := range p.Notes {
		fmt.Fprintln(b, "?", n)
	}
	for _, u := range p.Unread {
		fmt.Fprintln(b, "? not watched:", u)
	}
}

// Add adds what became of probes of this node, and orders the findings again.
func (d *Diagnosis) Add(p Probes, lost Lost) {
	d.Probed = d.Probed || p.Sent > p.Denied
	d.Unread, d.Notes = append(d.Unread, p.Unread...), append(d.Notes, p.Notes...)
	if p.came() && d.Peers <= MostPeersProbed {
		belieOwn(d.Findings)
	}
	own := []Diagnosis{*d}
	lost.Followed = explained(own, lost.Followed)
	d.Findings = append(own[0].Findings, lost.findings()...)
	slices.SortStableFunc(d.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.isIntended(), b.isIntended()), byLikelihood(a, b))
	})
}

// isIntended returns 1 for what is as somebody asked, so that it comes last.
func (f Finding) isIntended() int {
	if f.Severity == Intended {
		return 1
	}
	return 0
}

// mergeLosses makes one finding of losses at one place by one object.
func mergeLosses(losses []locate.Loss) []Finding {
	merged := []Finding{}
	for _, l := range losses {
		f := lossFinding(l)
		i := slices.IndexFunc(merged, func(o Finding) bool {
			return o.Place == f.Place && o.Object == f.Object && o.ID == f.ID
		})
		if i < 0 {
			merged = append(merged, f)
			continue
		}
		merged[i].Count++
		for _, m := range f.More {
			if len(merged[i].More) < maxShown && !slices.Contains(merged[i].More, m) {
				merged[i].More = append(merged[i].More, m)
			}
		}
	}
	return merged
}

// lossFinding returns the finding about a loss.
func lossFinding(l locate.Loss) Finding {
	k := packetLostNear
	switch {
	case l.Flow.Twice:
		k = packetTwice
	case l.Unanswered:
		k = outsideUnanswered
	case l.Exact && l.By.Text != "":
		k = packetLost
	}
	c, command := catalogue[k], harmless(l.By.Fix)
	f := Finding{ID: c.ID, Title: c.Title, Place: l.Host, Expected: "packets pass to " + l.Missing,
		Actual: "seen last " + at(l.Last), Why: c.Why, Fix: cmp.Or(command, c.Fix), Command: command, Page: k.page(),
		Severity: c.Severity, Count: 1, Likely: l.Likely, More: []string{l.Flow.Sent + ": " + l.Flow.Error}}
	if l.Flow.Twice {
		f.Expected, f.Actual = "one answer", "answered more than once"
	}
	if l.Reason != "" {
		f.Actual += "; the kernel says " + l.Reason
	}
	if l.Back && !l.Flow.Twice {
		f.Actual = "the answer is " + f.Actual
	}
	switch {
	case l.Unanswered && l.By.Text == "":
		f.Object = l.Flow.Dst.String()
	case l.By.Text == "":
		f.Object = unknownObject
	default:
		f.Object = string(l.By.Kind) + " " + l.By.Text
	}
	if l.By.Usual != "" {
		f.Actual += "; usual would be " + l.By.Usual
	}
	for _, o := range l.Others {
		f.More = append(f.More, "unusual on the path too: "+string(o.Kind)+" "+o.Text)
	}
	return f
}

func at(place string) string {
	if place == "nowhere" {
		return place
	}
	return "at " + place
}
