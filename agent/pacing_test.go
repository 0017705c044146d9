package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/internal/loop"
)

// TestRest: work for changes of the leases is followed by no pause until it is so much that it
// would take more than its share; and no pause is longer than mostPause, nor is there a debt after
// it.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const plan = 10 * time.Millisecond // of work, among thousands of peers
		b, spent := newWorkBudget(), time.Duration(0)
		for pause := time.Duration(0); pause == 0; {
			time.Sleep(plan)
			spent += plan
			pause = b.pauseAfter(plan)
			allowed := workBurst + time.Duration(workShare*float64(spent))
			if (pause > 0) != (spent > allowed) || pause > time.Duration(float64(plan)/workShare) {
				t.Fatalf("a pause of %v after %v", pause, spent)
			}
		}
		for range 3 { // a thousand nodes come at once, and one more a moment later
			if pause := b.pauseAfter(time.Hour); pause <= 0 || pause > mostPause {
				t.Errorf("a pause of %v, want at most %v: who joins then waits for its end", pause, mostPause)
			}
		}
		if pause := b.take(1, time.Now().Add(mostPause)); pause > 0 {
			t.Errorf("after that a pause of %v is left", pause)
		}
	})
}

// TestRecordBudget: a record may change five times at once, and then once in ten seconds; what has
// to wait costs nothing.
func TestRecordBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newRecordBudget(peerChanges)
		for i := range peerChanges {
			if wait := b.take(1, time.Now()); wait != 0 {
				t.Errorf("change %d waits %v", i, wait)
			}
		}
		for range 2 {
			for range 3 {
				if wait := b.take(1, time.Now()); wait != peerRest {
					t.Errorf("one more waits %v, want %v", wait, peerRest)
				}
			}
			time.Sleep(peerRest)
			if wait := b.take(1, time.Now()); wait != 0 {
				t.Errorf("and after %v still %v", peerRest, wait)
			}
		}
	})
}

// TestPacer: an event waits for the end of a pause.
func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := make(chan struct{}, 1)
		p, began := pacer{events: events}, time.Now()
		if p.pause(0); p.next() == nil {
			t.Error("no pause counts as one")
		}
		p.pause(time.Second)
		loop.Notify(events)
		for got := false; !got; {
			select {
			case <-p.next():
				got = true
			case <-p.resume:
				p.resume = nil
			}
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("the event came after %v, want a second", took)
		}
	})
}
