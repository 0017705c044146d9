package unusual

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkList lists what is unusual on a node with 110 pods, which is the most that Kubernetes gives one.
func BenchmarkList(b *testing.B) {
	inNamespace(b, func() {
		bridged(b)
		var batch strings.Builder
		other := pod(b)
		for i := range 110 {
			fmt.Fprintf(&batch, "link add unusualp%d type veth peer name unusualq%d netns %d\nlink set unusualp%d master unusualbr up\n", i, i, other, i)
		}
		if err := run("ip -batch - <<'END'\n" + batch.String() + "END"); err != nil {
			b.Fatal(err)
		}
		if err := run(fmt.Sprintf("nsenter -t %d -n sh -c 'for i in $(seq 0 109); do echo link set unusualq$i up; done | ip -batch -'", other)); err != nil {
			b.Fatal(err)
		}
		settled(b)
		for b.Loop() {
			if all := list(b); len(all) > 0 {
				b.Fatalf("nobody altered anything:\n%s", print(all))
			}
		}
	})
}
