package filter

import (
	"math/rand/v2"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// TestRoundTrip: from any state to any other one plan leads, and what is read then is what is wanted.
func TestRoundTrip(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f := open(t)
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		want := randomState(r)
		settle(t, f, want)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	settle(t, f, netstate.State{})
}
