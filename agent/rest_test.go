package agent

import (
	"testing"
	"time"
)

// TestRest: work for the store's changes is not followed by a rest, until it is so much that it would take more than its share.
func TestRest(t *testing.T) {
	limit, start, spent := newNewsLimit(), time.Now(), time.Duration(0)
	for rest := time.Duration(0); rest == 0; {
		began := used()
		for used()-began < 10*time.Millisecond { // a plan among thousands of peers
		}
		spent += used() - began
		rest = workedSince(limit, began)
		if rest > 0 && spent < newsBurst {
			t.Fatalf("a rest of %v after %v", rest, spent)
		}
		if rest > time.Duration(float64(spent)/newsShare) {
			t.Fatalf("a rest of %v after %v", rest, spent)
		}
		if share := time.Duration(newsShare * float64(time.Since(start))); rest == 0 && spent > newsBurst+share+50*time.Millisecond {
			t.Fatalf("no rest after %v", spent)
		}
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
