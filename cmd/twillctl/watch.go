package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/plain"
	"github.com/twill-net/twill/target"
)

// minInterval is how often at most --watch asks.
const minInterval = 100 * time.Millisecond

// statusView shows statuses, in colours on a terminal.
type statusView struct {
	out    io.Writer
	output string // text or json
	ask    func(context.Context) (doctor.StatusReport, error)
}

// once shows the status.
func (v statusView) once(ctx context.Context) error {
	r, err := v.ask(ctx)
	if err != nil {
		return err
	}
	text, err := v.text(r)
	if wrong := write(v.target(), text); wrong != nil {
		return wrong
	}
	return err
}

// text returns the status as it is shown. The error is errFindings if something is wrong.
func (v statusView) text(r doctor.StatusReport) (string, error) {
	var b bytes.Buffer
	err := render(plain.NewWriter(&b), v.output, r)
	if _, ok := terminalOf(v.out); ok && v.output == "text" && colours() {
		return paint(b.String()), err
	}
	return b.String(), err
}

// target is what the text is written to: a terminal takes colours.
func (v statusView) target() io.Writer {
	if t, ok := terminalOf(v.out); ok {
		return t.file
	}
	return v.out
}

func write(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}

// watch shows the status again and again until ctx is done. On a terminal each takes the place of the one before. The
// error is that of the last one.
func (v statusView) watch(ctx context.Context, every time.Duration) error {
	r, err := v.ask(ctx)
	if err != nil {
		return err // wrong flags stay wrong
	}
	if _, err := v.text(r); err != nil && !errors.Is(err, errFindings) {
		return err
	}
	t, onTerminal := terminalOf(v.out)
	if onTerminal {
		if err := write(t.file, noWrap+home+clearRest); err != nil {
			return err
		}
		defer func() { _ = write(t.file, wrap) }()
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		text, last := v.answer(r, err)
		if onTerminal {
			text = frame(heading(every)+text, t.height())
		}
		if wrong := write(v.target(), text); wrong != nil {
			return wrong
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
		if r, err = v.ask(ctx); err != nil && target.Interrupted(ctx) {
			return last
		}
	}
}

// wait asks until nothing is wrong or its patience ends, and shows the last answer. It says on progress what it waits for,
// whenever that is something else.
func (v statusView) wait(ctx context.Context, every, patience time.Duration, progress io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var r doctor.StatusReport
	err := fmt.Errorf("no answer within %v", patience)
	for said := ""; ; {
		now, failed := v.ask(ctx)
		if ctx.Err() == nil || failed == nil { // else the answer is that there was no time for one
			r, err = now, failed
		}
		text, last := v.answer(r, err)
		if last == nil || ctx.Err() != nil {
			return errors.Join(write(v.target(), text), last)
		}
		if err == nil && !errors.Is(last, errFindings) {
			return last // wrong flags stay wrong
		}
		if waits := waitsFor(r, err); waits != said {
			said = waits
			fmt.Fprintln(plain.NewWriter(progress), waits)
		}
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
}

// mostNames is how many nodes are named of those that are waited for.
const mostNames = 5

// waitsFor says what is waited for.
func waitsFor(r doctor.StatusReport, err error) string {
	if err != nil {
		return "waits: " + err.Error()
	}
	var names []string
	for _, n := range r.Nodes {
		if len(n.Findings) > 0 {
			names = append(names, n.Node+" ("+n.Findings[0]+")")
		}
	}
	for _, s := range r.Silent {
		node, _, _ := strings.Cut(s, ":")
		names = append(names, node+" (no answer)")
	}
	text := fmt.Sprintf("waits for %d of %d nodes: ", len(names), len(r.Nodes)+len(r.Silent))
	if more := len(names) - mostNames; more > 0 {
		return text + strings.Join(names[:mostNames], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return text + strings.Join(names, ", ")
}

// answer returns what to show of an answer. It may be an error: a cluster that cannot be asked now may be asked again.
func (v statusView) answer(r doctor.StatusReport, err error) (string, error) {
	if err != nil {
		return string(plain.Text([]byte("✗ " + err.Error() + "\n"))), err
	}
	return v.text(r)
}

func heading(every time.Duration) string {
	return fmt.Sprintf("%s, again every %v, Ctrl-C ends\n\n", time.Now().Format(time.TimeOnly), every)
}

// frame returns what makes a terminal of some lines show the text, and nothing of what it showed before.
func frame(text string, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if room := height - 1; len(lines) > room && room > 1 { // the cursor is in the last line
		more := len(lines) - room + 1
		lines = append(lines[:room-1], fmt.Sprintf("… and %d more lines", more))
	}
	return home + strings.Join(lines, clearLine+"\n") + clearLine + "\n" + clearRest
}
