package agent

import (
	"testing"
	"time"
)

// TestRest: work for the store's changes is not followed by a rest, until it is so much that it would take more than its share.
func TestRest(t *testing.T) {
	limit, rests := newNewsLimit(), 0
	for spent := time.Duration(0); spent < newsBurst+100*time.Millisecond; {
		began := used()
		for used()-began < 10*time.Millisecond { // a plan among thousands of peers
		}
		worked := used() - began
		rest := workedSince(limit, began)
		if spent += worked; rest > 0 {
			rests++
		}
		if rest > 0 && spent < newsBurst {
			t.Fatalf("a rest of %v after %v", rest, spent)
		}
		if most := time.Duration(float64(max(0, spent-newsBurst+50*time.Millisecond)) / newsShare); rest > most {
			t.Fatalf("a rest of %v after %v, want at most %v", rest, spent, most)
		}
	}
	if rests == 0 {
		t.Error("there is never a rest")
	}
	c := make(chan struct{}, 1)
	g := gate{c: c, open: c}
	g.rest(0)
	if g.open == nil {
		t.Error("closed for no rest")
	}
	g.rest(time.Millisecond)
	if g.open != nil {
		t.Error("open while it rests")
	}
	<-g.rested
}
