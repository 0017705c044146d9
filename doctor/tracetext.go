package doctor

import (
	"cmp"
	"fmt"
	"io"
	"strings"
)

// WriteJSON writes the trace for programs.
func (t Trace) WriteJSON(w io.Writer) error { return writeJSON(w, t) }

// WriteText writes the trace for people: a line for each place.
func (t Trace) WriteText(w io.Writer) error {
	var b strings.Builder
	t.writeServices(&b)
	if len(t.Services) > 0 && len(t.Forward) == 0 || t.failsService() && !t.failsPath() { // the path is not the reason
		t.writeSoundPath(&b)
		_, err := io.WriteString(w, b.String())
		return err
	}
	fmt.Fprintf(&b, "%s → %s\n", t.Src, t.Dst)
	writeSteps(&b, t.Forward)
	if len(t.Back) > 0 {
		fmt.Fprintf(&b, "%s → %s, the reply\n", t.Dst, t.Src)
		writeSteps(&b, t.Back)
	}
	t.writeEnd(&b)
	for _, u := range t.Unread {
		fmt.Fprintln(&b, "? not looked at:", u)
	}
	if t.Traffic != nil {
		t.Traffic.write(&b, t.Src, t.Dst)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeEnd writes what became of probes, and of the packet by the tables.
func (t Trace) writeEnd(b *strings.Builder) {
	p, s := t.Probes, t.Stopped
	isDenied := s != nil && s.Denied != nil
	switch {
	case p.Lost > 0:
		fmt.Fprintf(b, "✗ %d of %d probes are lost (%.1f s)\n", p.Lost, p.Sent, p.Seconds)
	case p.Denied > 0 && p.Sent > p.Denied:
		fmt.Fprintf(b, "✓ %s probes came back (%.1f s)\n", p.returned(), p.Seconds)
	case p.Denied > 0:
	case p.OnBehalf && isDenied:
		fmt.Fprintf(b, "? %d probes came back that the node sent in the pod's name (%.1f s): policies for what pods send do not "+
			"apply to those\n", p.Sent, p.Seconds)
	case p.Other:
		fmt.Fprintf(b, "? %d probes came back that were sent from another address (%.1f s): the pod may not be entered from here\n",
			p.Sent, p.Seconds)
	case p.Sent > 0 && s != nil:
		fmt.Fprintf(b, "✓ all %d probes came back (%.1f s), although by the tables the packet would stop at %s, %s: %s\n",
			p.Sent, p.Seconds, s.Node, s.Place, s.Verdict)
		return
	case p.Sent > 0 && t.Outside:
		fmt.Fprintf(b, "✓ an answer came back (%.1f s)\n", p.Seconds)
	case p.Sent > 0:
		fmt.Fprintf(b, "✓ all %d probes came back, %s (%.1f s)\n", p.Sent, p.kinds(), p.Seconds)
	case s == nil:
		fmt.Fprintln(b, "? nothing that can be seen without a probe stops it")
	}
	p.writeDenied(b)
	for i, f := range t.Lost {
		f.write(b, i == 0 && f.kind() == packetLost)
	}
	if s != nil {
		mark := "✗"
		if isDenied && s.Denied.Reason == Asked {
			mark = "–"
		}
		fmt.Fprintf(b, "%s stops at %s, %s: %s\n  fix: %s\n  more: %s\n", mark, s.Node, s.Place, s.Verdict,
			cmp.Or(s.Fix, "see there"), kind(s.Finding).page())
	}
	p.writeUnread(b)
}

func writeSteps(b *strings.Builder, steps []Step) {
	for _, s := range steps {
		mark := "  "
		switch {
		case s.stops() && s.Denied != nil && s.Denied.Reason == Asked:
			mark = "– "
		case s.stops():
			mark = "✗ "
		case s.Partial:
			mark = "! "
		case s.Unread:
			mark = "? "
		}
		fmt.Fprintf(b, "%s%-8s %-26s %s\n", mark, s.Node, s.Place, s.Entry)
	}
}
