package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkPod measures what a runtime waits for, process start included: an ADD, its DEL and the second DEL
// that containerd sends with an empty netns, with few and with many reservations on the node.
func BenchmarkPod(b *testing.B) {
	for _, others := range []int{0, 4000} {
		for _, cmd := range []string{"ADD", "DEL", "second DEL"} {
			b.Run(fmt.Sprintf("%s/%d reservations", cmd, others), func(b *testing.B) { benchmarkPod(b, cmd, others) })
		}
	}
}

func benchmarkPod(b *testing.B, cmd string, others int) {
	n := newNode(b, "FLANNEL_NETWORK=10.240.0.0/12\nFLANNEL_SUBNET=10.244.0.1/16\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n")
	pod := newNamespace(b)
	n.must("DEL", "first", "", n.withPrev(n.must("ADD", "first", pod, n.config(nil)))) // which made the bridge
	for i := range others {
		path := filepath.Join(n.storeDir(), fmt.Sprintf("10.244.%d.%d", 100+i/250, i%250))
		if err := os.WriteFile(path, []byte("other\r\neth0"), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	timed := func(name, command, netns string, conf []byte) []byte {
		if name == cmd {
			b.StartTimer()
			defer b.StopTimer()
		}
		return n.must(command, "a", netns, conf)
	}
	b.ResetTimer()
	b.StopTimer()
	for range b.N {
		result := timed("ADD", "ADD", pod, n.config(nil))
		timed("DEL", "DEL", pod, n.withPrev(result))
		timed("second DEL", "DEL", "", n.config(nil))
	}
}
