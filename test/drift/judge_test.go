//go:build soak

package drift

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/test/advice"
)

// describe lists at most ten of the things under a heading.
func describe[T any](heading string, things []T) string {
	var b strings.Builder
	for i, v := range things {
		if i == 0 {
			b.WriteString("\n      " + heading + ":")
		}
		if i == 10 {
			fmt.Fprintf(&b, "\n      … and %d more", len(things)-i)
			break
		}
		text := strings.TrimSpace(fmt.Sprint(v))
		if len(text) > 200 {
			text = text[:200] + "…"
		}
		b.WriteString("\n      " + text)
	}
	return b.String()
}

// brief returns the changes without the attributes of objects that came or went as a whole.
func brief(changes []change) []change {
	whole := map[string]bool{}
	for _, c := range changes {
		whole[c.object] = whole[c.object] || c.name == "present"
	}
	return slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return whole[c.object] && c.name != "present" })
}

// restore takes a move back if asked to, and makes a new lab where that does not suffice.
func (r *run) restore(m move, needed bool, take func() (string, error)) {
	if !needed {
		return
	}
	out, err := take()
	var left []change
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); r.pause(20 * time.Millisecond) {
		if left = diff(r.healthy, r.look()); len(left) == 0 && r.lost() == "" {
			return
		}
	}
	r.Logf("%s: cannot be taken back (%s: %s %v): a new lab%s", m, m.undo, strings.TrimSpace(out), err,
		describe("altered", brief(left)))
	r.up()
}

func (r *run) shell(command string) (string, error) {
	ctx, cancel := context.WithTimeout(r.Context(), testwait.Limit)
	defer cancel()
	var out strings.Builder
	err := r.node.Attach(ctx, strings.NewReader(""), &out, &out, "sh", "-c", command)
	return out.String(), err
}

// doctorDuring is doctor while something is done again and again: what drops packets is found while there are some.
func (r *run) doctorDuring(do func()) (id, title string) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		id, title = r.doctor()
	}()
	for {
		select {
		case <-ended:
			return id, title
		default:
			do()
		}
	}
}

// doctor returns the identifier and the title of its first finding.
func (r *run) doctor() (id, title string) {
	ctx, cancel := context.WithTimeout(r.Context(), testwait.Limit)
	defer cancel()
	all, err := advice.Findings(ctx, r.node, r.program)
	switch {
	case err != nil:
		return "", err.Error()
	case len(all) == 0:
		return "", ""
	}
	f := all[0]
	return f.ID, f.ID + ": " + f.Title + " (" + f.Object + ")"
}
