package unusual

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
)

// TestExhausted: a reason that means one thing names the machine's parameter, also from within a pod's namespace, where no
// file says what it is.
func TestExhausted(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile("/proc/sys/net/" + name)
		if err != nil {
			t.Skipf("the machine's own parameters are not seen from here: %v", err)
		}
		fields := strings.Fields(string(text))
		return fields[len(fields)-1]
	}
	thresholds := map[bool]string{false: read("ipv4/neigh/default/gc_thresh3"), true: read("ipv6/neigh/default/gc_thresh3")}
	check := func(where string, fix bool) {
		for v6, most := range thresholds {
			o, ok := Exhausted("NEIGH_CREATEFAIL", "ip_finish_output2", v6)
			name := fmt.Sprintf("net.ipv%d.neigh.default.gc_thresh3", map[bool]int{false: 4, true: 6}[v6])
			if !ok || o.Part != name || o.Value != most || !strings.HasPrefix(o.Text, name+" = "+most+": the neighbour table has ") ||
				(o.Fix != "") != fix {
				t.Errorf("%s: got %+v, want %s = %s", where, o, name, most)
			}
		}
	}
	check("in the machine's namespace", unix.Access("/proc/sys/net/ipv4/neigh/default/gc_thresh3", unix.W_OK) == nil)
	udp, _ := Exhausted("PROTO_MEM", "udp_queue_rcv_one_skb", false)
	tcp, _ := Exhausted("PROTO_MEM", "tcp_data_queue", false)
	if udp.Part != "net.ipv4.udp_mem" || udp.Value != read("ipv4/udp_mem") || tcp.Part != "net.ipv4.tcp_mem" || strings.Contains(tcp.Text, "all pages") {
		t.Errorf("got %+v and %+v", udp, tcp)
	}
	if o, ok := Exhausted("NETFILTER_DROP", "nf_hook_slow", false); ok || o != (locate.Object{}) {
		t.Errorf("a reason of many causes: got %+v", o)
	}
	inNamespace(t, func() { check("in another namespace", false) })
}
