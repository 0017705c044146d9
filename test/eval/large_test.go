package eval

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
)

// manyPeers is how many nodes the large cluster has beside the lab's.
const manyPeers = 1000

// TestLarge: a node with a thousand peers, of which the lab's store knows without that they exist.
func TestLarge(t *testing.T) {
	l := labtest.Up(t, lab.Spec{Name: "doctorlarge", Store: lab.File, Nodes: 2, Pods: 1})
	path := filepath.Join(l.Dir(), "leases.json")
	data, err := os.ReadFile(path)
	check(t, err)
	leases, _, err := file.Parse(data)
	check(t, err)
	for i := range manyPeers {
		stack := subnet.Stack{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i / 4), byte(i % 4 * 64)}), 26),
			Underlay: netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)}),
			Data:     json.RawMessage(fmt.Sprintf(`{"VNI":1,"VtepMAC":"0e:00:00:00:%02x:%02x"}`, i>>8, i&0xff))}
		if taken(stack.Subnet, l) || stack.Underlay.As4()[3] == 0 {
			continue
		}
		leases = append(leases, subnet.Lease{Node: fmt.Sprintf("many%d", i), Backend: "vxlan", Stacks: []subnet.Stack{stack}})
	}
	data, err = file.Format(leases)
	check(t, err)
	check(t, os.WriteFile(path+".new", data, 0o644))
	check(t, os.Rename(path+".new", path))
	n := l.Nodes()[0]
	testwait.Nil(t, "a look that finds nothing", func() error {
		began := time.Now()
		f := lookAt(t, l, n, doctor.NoProbes)
		got, took := doctor.Check(f), time.Since(began)
		if len(f.Lease.Snapshot.Peers) <= manyPeers*9/10 || len(got) > 0 {
			return fmt.Errorf("%d peers, findings %s", len(f.Lease.Snapshot.Peers), ids(got))
		}
		t.Logf("%d peers: %s", len(f.Lease.Snapshot.Peers), took)
		return nil
	})
}

func taken(p netip.Prefix, l *lab.Lab) bool {
	for _, n := range l.Nodes() {
		for _, s := range n.Subnets() {
			if s.Overlaps(p) {
				return true
			}
		}
	}
	return false
}
