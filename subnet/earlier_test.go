package subnet

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
)

func stackOf(subnet, underlay, data string) Stack {
	return Stack{netip.MustParsePrefix(subnet), netip.MustParseAddr(underlay), json.RawMessage(data)}
}

// TestEarlier: what a record says of the subnets before its own, and what it may not say.
func TestEarlier(t *testing.T) {
	for data, want := range map[string][]string{
		"":                                nil,
		"null":                            nil,
		`{"VtepMAC":"0a:00:00:00:00:01"}`: nil,
		`{"Earlier":["10.244.9.0/24"]}`:   {"10.244.9.0/24"},
		`{"Earlier":["10.244.9.0/24","fc00::/64","10.245.0.0/25"],"VNI":1}`: {"10.244.9.0/24", "10.245.0.0/25"},
		`{"Earlier":["10.244.9.1/24","10.244.8.0/24"]}`:                     {"10.244.8.0/24"},
		`{"Earlier":["10.1.0.0/24","10.2.0.0/24","10.3.0.0/24"]}`:           {"10.1.0.0/24", "10.2.0.0/24"},
		`{"Earlier":"10.244.9.0/24"}`:                                       nil,
		`{"Earlier":["all"]}`:                                               nil,
		`{"Earlier":[""]}`:                                                  nil,
		`{"Earlier":{}}`:                                                    nil,
		`"Earlier"`:                                                         nil,
		`{"Earlier":`:                                                       nil,
		`{"Ways":[{"Type":"vxlan","Data":{"Earlier":["10.9.0.0/24"]}}]}`:     nil,
		`{"Earlier":[null,"10.244.9.0/24"]}`:                                 {"10.244.9.0/24"},
		`{"Earlier":["10.244.9.0/24"],"Earlier":["10.244.8.0/24"],"x":[{}]}`: {"10.244.8.0/24"},
	} {
		if got := stackOf("10.244.1.0/24", "192.168.33.101", data).Earlier(); !slices.Equal(got, prefixesOf(want...)) {
			t.Errorf("%s: %v, want %s", data, got, want)
		}
	}
}

func prefixesOf(texts ...string) (list []netip.Prefix) {
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

// TestWithEarlier: the key comes to what the backend publishes, and goes again.
func TestWithEarlier(t *testing.T) {
	const vtep = `{"VNI":1,"VtepMAC":"0a:00:00:00:00:01"}`
	more := prefixesOf("fc00::/64", "10.244.1.0/24", "10.244.9.0/24", "10.244.9.0/24", "10.1.0.0/24", "10.2.0.0/24")
	for data, want := range map[string]string{
		"":          `{"Earlier":["10.244.9.0/24","10.1.0.0/24"]}`,
		"null":      `{"Earlier":["10.244.9.0/24","10.1.0.0/24"]}`,
		vtep:        `{"Earlier":["10.244.9.0/24","10.1.0.0/24"],"VNI":1,"VtepMAC":"0a:00:00:00:00:01"}`,
		`"10.1.1"`:  `"10.1.1"`,
		`{"broken"`: `{"broken"`,
	} {
		before := stackOf("10.244.1.0/24", "192.168.33.101", data)
		with := before.WithEarlier(more)
		if string(with.Data) != want {
			t.Errorf("%s: %s, want %s", data, with.Data, want)
		}
		if again := with.WithEarlier(more); !again.equal(with) {
			t.Errorf("%s: the second time %s", data, again.Data)
		}
		if without := with.WithEarlier(nil); !without.equal(before) {
			t.Errorf("%s: afterwards %s", data, without.Data)
		}
	}
}

// TestSnapshotWithEarlier: subnets of before are leases behind all others, this node's first.
func TestSnapshotWithEarlier(t *testing.T) {
	snap := Snapshot{
		Local: Lease{Node: "node1", Backend: "vxlan", Stacks: []Stack{stackOf("10.50.1.0/24", "192.168.33.101", `{"Earlier":["10.244.1.0/24"]}`)}},
		Peers: []Lease{
			{Node: "node2", Backend: "vxlan", Stacks: []Stack{stackOf("10.50.2.0/24", "192.168.33.102", `{"Earlier":["10.244.2.0/24","10.244.4.0/24"]}`)}},
			{Node: "node3", Backend: "vxlan", Stacks: []Stack{stackOf("10.50.3.0/24", "192.168.33.103", `{"VNI":1}`)}},
		},
	}
	all := snap.WithEarlier()
	var got []string
	for _, l := range all.Peers {
		for _, s := range l.Stacks {
			got = append(got, l.Node+" "+s.Subnet.String()+" "+s.Underlay.String())
		}
	}
	want := []string{"node2 10.50.2.0/24 192.168.33.102", "node3 10.50.3.0/24 192.168.33.103", "node1 10.244.1.0/24 192.168.33.101",
		"node2 10.244.2.0/24 192.168.33.102", "node2 10.244.4.0/24 192.168.33.102"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(snap.Peers) != 2 || len(all.WithEarlier().Peers) != len(all.Peers) {
		t.Errorf("%d and %d leases", len(snap.Peers), len(all.WithEarlier().Peers))
	}
}

// FuzzEarlier: whatever a record says, it is bounded, of its family, and can be taken back.
func FuzzEarlier(f *testing.F) {
	f.Add(`{"Earlier":["10.244.9.0/24"]}`)
	f.Add(`{"Earlier":["::/0"],"Ways":[]}`)
	f.Add(`{"earlier":["10.244.9.0/24"],"VNI":"Earlier"}`)
	f.Fuzz(func(t *testing.T, data string) {
		s := stackOf("10.244.1.0/24", "192.168.33.101", data)
		list := s.Earlier()
		if len(list) > mostEarlier || slices.ContainsFunc(list, func(p netip.Prefix) bool { return !p.Addr().Is4() || p != p.Masked() }) {
			t.Errorf("%v", list)
		}
		if left := s.WithEarlier(nil).Earlier(); len(left) > 0 {
			t.Errorf("%v are left of %q", left, data)
		}
	})
}
