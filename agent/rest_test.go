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
	for range 3 { // a thousand nodes come at once, and one more a moment later
		if rest := workedSince(limit, used()-newsBurst); rest <= 0 || rest > mostNewsRest {
			t.Errorf("a rest of %v, want at most %v: who joins then waits for its end", rest, mostNewsRest)
		}
	}
	if rest := limit.ReserveN(time.Now().Add(mostNewsRest), 1).Delay(); rest > mostNewsRest+mostNewsRest/10 {
		t.Errorf("after that a rest of %v is left", rest)
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
