package droplog

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// reader is one that may be stopped or gone.
type reader struct {
	mu   sync.Mutex
	text strings.Builder
	gate chan struct{} // not nil: it reads when this is closed
	gone bool
}

func (r *reader) Write(p []byte) (int, error) {
	if r.gate != nil {
		<-r.gate
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return 0, errors.New("broken pipe")
	}
	return r.text.Write(p)
}

func report(w io.Writer, lost int) { fmt.Fprintf(w, "%d lines lost\n", lost) }

// TestStopped: a reader that takes nothing keeps nobody waiting, and learns how much it has missed.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{gate: make(chan struct{})}
		w := New(r)
		w.Report(report)
		line := strings.Repeat("x", 1023) + "\n"
		const lines = 3 * room / 1024
		for range lines {
			if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
				t.Fatal(n, err)
			}
			synctest.Wait() // the reader holds one line from the first on, and makes no room between two that are lost
		}
		close(r.gate)
		synctest.Wait()
		fmt.Fprint(w, "after\n")
		w.Close(time.Second)
		text := r.text.String()
		kept := strings.Count(text, "x\n")
		if want := fmt.Sprintf("\n%d lines lost\nafter\n", lines-kept); kept < room/1024-1 || !strings.HasSuffix(text, want) {
			t.Errorf("%d lines of %d, and then %q; want it to end with %q", kept, lines, text[len(text)-60:], want)
		}
	})
}

// TestGone: a reader that is gone is no error, and one that comes back learns how much it has missed.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{gone: true}
		w := New(r)
		w.Report(report)
		for range 3 {
			fmt.Fprint(w, "lost\n")
		}
		synctest.Wait()
		r.mu.Lock()
		r.gone = false
		r.mu.Unlock()
		fmt.Fprint(w, "there\n")
		w.Close(time.Second)
		if got := r.text.String(); got != "3 lines lost\nthere\n" {
			t.Errorf("got %q", got)
		}
		fmt.Fprint(w, "too late\n")
	})
}

// TestCloseWaits: what was written before the end is read, unless the reader is stopped.
func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r := &reader{}
		w := New(r)
		fmt.Fprint(w, "last words\n")
		w.Close(time.Second)
		if r.text.String() != "last words\n" || time.Since(began) != 0 {
			t.Errorf("got %q after %s", r.text.String(), time.Since(began))
		}
		stopped := &reader{gate: make(chan struct{})}
		w = New(stopped)
		fmt.Fprint(w, "last words\n")
		w.Close(time.Second)
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("waited %s", waited)
		}
		close(stopped.gate)
	})
}
