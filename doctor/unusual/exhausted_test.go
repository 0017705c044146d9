package unusual

import (
	"os"
	"strings"
	"testing"
)

// TestLimits: what limits the machine is read as its files say, also from within a pod's namespace, where there are none.
func TestLimits(t *testing.T) {
	read := func(name string) uint64 {
		text, err := os.ReadFile("/proc/sys/net/" + name)
		if err != nil {
			t.Skipf("the machine's own parameters are not seen from here: %v", err)
		}
		return last(strings.Join(strings.Fields(string(text)), " "))
	}
	for v6, file := range map[bool]string{false: "ipv4/neigh/default/gc_thresh3", true: "ipv6/neigh/default/gc_thresh3"} {
		want := read(file)
		here, used := neighbourTable(v6)
		inNamespace(t, func() {
			if most, _ := neighbourTable(v6); most != want || here != want || used == 0 {
				t.Errorf("%s: got %d here with %d used, and %d in another namespace, want %d", file, here, used, most, want)
			}
		})
	}
	if pages("tcp") > read("ipv4/tcp_mem") || pages("udp") > read("ipv4/udp_mem") {
		t.Errorf("TCP has %d pages and UDP %d", pages("tcp"), pages("udp"))
	}
}

// TestExhausted: a parameter is named only where as much is in use, with a command where that would help.
func TestExhausted(t *testing.T) {
	for name, test := range map[string]struct {
		file       string
		most, used uint64
		want       string
	}{
		"full":           {"ipv4/neigh/default/gc_thresh3", 1024, 1024, "net.ipv4.neigh.default.gc_thresh3 = 1024: 1024 used"},
		"full, just now": {"ipv4/tcp_mem", 1000, 930, "net.ipv4.tcp_mem = 1000: 930 used"},
		"room":           {"ipv4/tcp_mem", 1000, 12, ""},
		"not known":      {"ipv4/tcp_mem", 0, 12, ""},
	} {
		o, ok := limit(test.file, test.most, test.used, "%d used")
		if ok != (test.want != "") || o.Text != test.want || strings.HasSuffix(test.file, "_mem") && o.Fix != "" {
			t.Errorf("%s: got %+v, %t", name, o, ok)
		}
	}
	// Permanent neighbours are counted, too, and other tests have many.
	for _, reason := range []string{"NETFILTER_DROP", "PROTO_MEM"} {
		if o, ok := Exhausted(reason, "ip_finish_output2", false); ok {
			t.Errorf("%s, and nothing is used up: got %+v", reason, o)
		}
	}
}
