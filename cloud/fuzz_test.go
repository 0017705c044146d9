package cloud_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/subnet"
)

// table makes a routing table of bytes, five for each route: what anybody may have written.
func table(data []byte) (routes []cloud.Route) {
	for ; len(data) >= 5; data = data[5:] {
		bits := []int{0, 8, 15, 16, 24, 24, 24, 25, 32}[int(data[0])%9]
		dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244 + data[1]%3, data[2] % 8, 0}), bits).Masked()
		r := cloud.Route{Table: []string{"", "rtb-1", "rtb-2", "rtb-other"}[data[3]%4], Dst: dst,
			Target: []string{"", "eni-1", "eni-2", "eni-9", "igw-1", "local"}[data[4]%6], State: cloud.State(data[4] / 6 % 3)}
		r.Name = fmt.Sprint(len(routes))
		routes = append(routes, r)
	}
	return routes
}

// FuzzForeign: whatever the tables hold, an agent changes its own subnets' routes in the tables that it keeps, and earlier ones
// of its own; the janitor changes dead ones of nobody; all other routes stay. Then the tables are right.
func FuzzForeign(f *testing.F) {
	f.Add([]byte{4, 0, 1, 1, 1, 4, 0, 1, 2, 2, 5, 1, 3, 1, 1, 0, 0, 0, 1, 4, 4, 0, 5, 1, 3 + 12})
	pools := []subnet.Pool{pool("10.244.0.0/15", 24)}
	self := cloud.Self{Target: "eni-1", Tables: []string{"rtb-1", "rtb-2"}}
	lease := func(s string) subnet.Lease { return subnet.Lease{Stacks: []subnet.Stack{{Subnet: prefix(s)}}} }
	snap := subnet.Snapshot{Local: lease("10.244.1.0/24"), Peers: []subnet.Lease{lease("10.244.2.0/24"), lease("10.245.3.0/24")}}
	leased := []netip.Prefix{prefix("10.244.1.0/24"), prefix("10.244.2.0/24"), prefix("10.245.3.0/24")}
	f.Fuzz(func(t *testing.T, data []byte) {
		have := table(data)
		want := cloud.Want(self, snap.Local)
		changes := cloud.Diff(want, have, self, pools)
		dead := cloud.Dead(have, snap, pools)
		for _, r := range have {
			changed := slices.ContainsFunc(changes, func(c cloud.Change) bool { return c.Old == r || c.Op == cloud.Delete && c.Route == r })
			kept := slices.Contains(self.Tables, r.Table)
			isPods := r.Dst.Bits() == 24 && prefix("10.244.0.0/15").Contains(r.Dst.Addr())
			mine := kept && (r.Dst == leased[0] || r.Target == self.Target && isPods)
			if changed && !mine {
				t.Errorf("%s is somebody else's: %v", r, changes)
			}
			if slices.Contains(dead, r) && (r.State != cloud.Blackhole || !isPods || slices.Contains(leased, r.Dst)) {
				t.Errorf("%s is not dead, or somebody's", r)
			}
		}
		if again := cloud.Diff(want, applied(t, have, changes), self, pools); len(again) > 0 {
			t.Errorf("after %v of %v there is still %v", changes, have, again)
		}
	})
}

// applied returns a table with changes made.
func applied(t *testing.T, have []cloud.Route, changes []cloud.Change) []cloud.Route {
	have = slices.Clone(have)
	for _, c := range changes {
		switch c.Op {
		case cloud.Create:
			have = append(have, c.Route)
		case cloud.Replace:
			i := slices.Index(have, c.Old)
			if i < 0 {
				t.Fatalf("%s: there is no such route", c)
			}
			have[i] = c.Route
		case cloud.Delete:
			have = slices.DeleteFunc(have, func(r cloud.Route) bool { return r == c.Route })
		}
	}
	return have
}
