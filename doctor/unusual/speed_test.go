package unusual

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestSpeed: a node has up to 110 pods.
func TestSpeed(t *testing.T) {
	if testing.Short() {
		t.Skip("it makes 220 devices")
	}
	inNamespace(t, func() {
		bridged(t)
		var batch strings.Builder
		other := pod(t)
		for i := range 110 {
			fmt.Fprintf(&batch, "link add unusualp%d type veth peer name unusualq%d netns %d\nlink set unusualp%d master unusualbr up\n", i, i, other, i)
		}
		if err := run("ip -batch - <<'END'\n" + batch.String() + "END"); err != nil {
			t.Fatal(err)
		}
		if err := run(fmt.Sprintf("nsenter -t %d -n sh -c 'for i in $(seq 0 109); do echo link set unusualq$i up; done | ip -batch -'", other)); err != nil {
			t.Fatal(err)
		}
		settled(t)
		best := time.Hour
		for range 5 {
			start := time.Now()
			if all := list(t); len(all) > 0 {
				t.Fatalf("nobody altered anything:\n%s", print(all))
			}
			best = min(best, time.Since(start))
		}
		t.Logf("%v", best)
		if best > 150*time.Millisecond {
			t.Errorf("%v for 110 pods, want at most 150 ms", best)
		}
	})
}
