package policy_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// across are the connections between pods of node 1 and others, and between others, to some ports.
func across(s policy.Snapshot) (all []policy.Flow) {
	for _, from := range s.Pods {
		for _, to := range s.Pods {
			for _, a := range from.Addrs {
				for _, b := range to.Addrs {
					if netstate.FamilyOf(a) == netstate.FamilyOf(b) {
						for _, port := range []uint16{80, 443, 5000} {
							f := policy.Flow{From: s.At(a), To: s.At(b), Protocol: policy.TCP, Port: port}
							all = append(all, f)
							f.Protocol = policy.UDP
							all = append(all, f)
						}
					}
				}
			}
		}
	}
	return all
}

func denied(t *policy.Table, f policy.Flow) bool { return deniedPod(t, f).IsValid() }

// deniedPod is the pod whose connection is denied.
func deniedPod(t *policy.Table, f policy.Flow) netip.Addr {
	number := map[policy.Protocol]uint8{policy.TCP: 6, policy.UDP: 17}[f.Protocol]
	return t.Denied(netip.AddrPortFrom(f.From.Addr, 40000), netip.AddrPortFrom(f.To.Addr, f.Port), number)
}

// TestDenied: of connections between nodes the table denies those that it denies as rules do, at the pod that is its node's.
func TestDenied(t *testing.T) {
	counts := map[bool]int{}
	for seed := range uint64(60) {
		w := policytest.New(seed)
		w.Cluster = int(seed % 4)
		s, site := w.Snapshot(3, 6), w.Site(1)
		rules, _ := policy.New(s)
		table, _ := policy.NewTable(site, s)
		for _, f := range across(s) {
			if f.From.Pod == nil || f.To.Pod == nil {
				continue // in the host's network, or gone
			}
			from, to := contains(site.Subnets, f.From.Addr), contains(site.Subnets, f.To.Addr)
			v := rules.Judge(f)
			var want netip.Addr
			switch {
			case from && !to && !v.Egress.Allowed():
				want = f.From.Addr
			case to && !from && !v.Ingress.Allowed():
				want = f.To.Addr
			}
			if got := deniedPod(table, f); got != want {
				t.Fatalf("seed %d: %s is denied at %v, want %v: %+v", seed, f, got, want, v)
			}
			if from != to {
				counts[want.IsValid()]++
			}
		}
	}
	if t.Log(counts); counts[true] < 500 || counts[false] < 500 {
		t.Errorf("of denied connections and others there are %v", counts)
	}
}

func contains(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// TestDeniedStrangers: an address of the node's that is no pod's is denied, and what is not between nodes' pods is not asked.
func TestDeniedStrangers(t *testing.T) {
	w := policytest.New(1)
	s, site := w.Snapshot(2, 3), w.Site(1)
	table, _ := policy.NewTable(site, s)
	for ends, want := range map[[2]string]bool{
		{"10.244.1.250", "10.244.2.250"}:           true,
		{"10.244.2.250", "10.244.1.250"}:           true,
		{"fd00:10:244:1::fa", "fd00:10:244:2::fa"}: true,
		{"10.244.1.250", "10.244.1.251"}:           false, // on the bridge
		{"10.244.1.250", "192.0.2.1"}:              false,
		{"192.0.2.1", "10.244.1.250"}:              false,
		{"10.244.2.250", "10.244.3.250"}:           false,
		{"fd00:10:244:1::fa", "2001:db8::1"}:       false,
		{"fd00:10:244:2::fa", "fd00:10:244:3::fa"}: false,
	} {
		from, to := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
		if got := table.Denied(netip.AddrPortFrom(from, 1), netip.AddrPortFrom(to, 2), 6).IsValid(); got != want {
			t.Errorf("from %s to %s is denied: %v, want %v", from, to, got, want)
		}
	}
}

// TestMayDeny: no plan that is said to deny nothing denies a connection that was allowed; and some are said so.
func TestMayDeny(t *testing.T) {
	harmless, denying := 0, 0
	for seed := range uint64(150) {
		w := policytest.New(seed)
		w.Cluster = int(seed % 3)
		s, site := w.Snapshot(3, 6), w.Site(1)
		was, _ := policy.NewTable(site, s)
		for range 4 {
			next := s
			switch w.IntN(4) {
			case 0:
				p := w.Pod(1+w.IntN(3), 40+w.IntN(9))
				next.Pods = append(slices.Clone(s.Pods), &p)
			case 1:
				gone := w.IntN(len(s.Pods))
				next.Pods = slices.Delete(slices.Clone(s.Pods), gone, gone+1)
			case 2:
				next.Policies = append(slices.Clone(s.Policies), w.Policy("late"))
			case 3:
				next.Policies = s.Policies[min(1, len(s.Policies)):]
			}
			now, _ := policy.NewTable(site, next)
			may := now.MayDeny(netstate.Diff(now.State(), was.State()))
			for _, f := range across(s) {
				if denied(now, f) && !denied(was, f) && !may {
					t.Fatalf("seed %d: %s was allowed, and is not any more; the plan says nothing of it:\n%s", seed, f,
						netstate.Diff(now.State(), was.State()))
				}
			}
			if may {
				denying++
			} else {
				harmless++
			}
			s, was = next, now
		}
	}
	if t.Logf("%d plans may deny, %d do not", denying, harmless); denying < 50 || harmless < 50 {
		t.Errorf("%d plans may deny, %d do not", denying, harmless)
	}
}
