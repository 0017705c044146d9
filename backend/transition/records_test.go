package transition_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// said is one of a record's Ways.
type said struct {
	Type         string
	Since, Until int64           `json:",omitempty"`
	Data         json.RawMessage `json:",omitempty"`
}

// draw returns ways of a node, each once, with any times and with some that nobody knows.
func draw(r *rand.Rand, node int) (all []said) {
	times := []int64{0, 0, 1, 2, 3, -5, math.MaxInt64, math.MinInt64}
	for range r.IntN(6) {
		way := said{Type: "host-gw", Since: times[r.IntN(len(times))]}
		switch vni := []int{0, 0, 1, 1, 7, 7, 9}[r.IntN(7)]; {
		case vni > 0:
			way.Type, way.Data = "vxlan", fmt.Appendf(nil, `{"VNI":%d,"VtepMAC":"0a:00:00:00:%02x:%02x","Port":8472}`, vni, vni, node)
		case r.IntN(4) == 0:
			way.Type = "geneve"
		}
		if r.IntN(5) == 0 {
			way.Until = times[r.IntN(len(times))]
		}
		if !slices.ContainsFunc(all, func(w said) bool { return w.Type == way.Type && string(w.Data) == string(way.Data) }) {
			all = append(all, way)
		}
	}
	return all
}

// says has a node publish these ways; its record's own backend is one of them.
func (m *member) says(t *testing.T, ways []said) {
	t.Helper()
	kind := "vxlan"
	for _, w := range ways {
		if w.isKnown() {
			kind = w.Type
		}
	}
	data, err := json.Marshal(map[string]any{"VNI": 1, "VtepMAC": "0a:00:00:00:01:" + m.name[4:] + "0", "Port": 8472, "Ways": ways})
	if err != nil {
		t.Fatal(err)
	}
	m.lease.Backend, m.lease.Stacks[0].Data = kind, data
}

// way is the device by which a node reaches another one.
func (m *member) way(to *member) string {
	state, _ := m.desired()
	for _, o := range state.Sorted() {
		if r, ok := o.(netstate.Route); ok && r.Dst == to.lease.Stacks[0].Subnet {
			return r.Dev
		}
	}
	return ""
}

// key is what two offers of one way have in common.
func (s said) key() string {
	if s.Until != 0 {
		return ""
	}
	var data struct{ VNI int }
	if json.Unmarshal(s.Data, &data) != nil {
		return s.Type
	}
	return fmt.Sprint(s.Type, data.VNI)
}

// isKnown reports whether the nodes have a backend for a way.
func (s said) isKnown() bool {
	return s.Type != "geneve" && !strings.Contains(string(s.Data), `"VNI":9`)
}

// TestSameWay: two nodes with a way in common choose the same one, whatever clocks their records were written by, in which
// order their configs came, and what subnets they had before.
func TestSameWay(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 3))
		c := newCluster(t, 2, confs[0])
		a, b := c.members[0], c.members[1]
		for _, m := range c.members {
			for _, i := range r.Perm(3) {
				m.kept = append(m.kept, json.RawMessage(confs[i]))
			}
			c.restart(m, confs[r.IntN(3)])
		}
		first, second := draw(r, 1), draw(r, 2)
		a.says(t, first)
		b.says(t, second)
		if r.IntN(2) == 0 { // the node of the lower subnet had a higher one before
			a.lease.Stacks[0] = a.lease.Stacks[0].WithEarlier([]netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")})
		}
		c.see(a)
		c.see(b)
		common := false
		seen := map[string]bool{}
		for _, w := range first {
			seen[w.key()] = true
		}
		for _, w := range second {
			common = common || w.isKnown() && w.Until == 0 && seen[w.key()]
		}
		if there, back := a.way(b), b.way(a); common && there != back {
			t.Fatalf("seed %d: one way by %q, the other by %q\n%s\n%s", seed, there, back, text(a.lease), text(b.lease))
		}
	}
}

// TestHostileRecord: a record of nonsense changes no other pair's way, and one that is too long is read as the record of a node
// that knows nothing of ways.
func TestHostileRecord(t *testing.T) {
	long := strings.Repeat(`{"Type":"host-gw","Since":9},`, 40_000)
	for name, ways := range map[string]string{
		"many":      `[` + strings.Repeat(`{"Type":"host-gw"},`, 100) + `{"Type":"vxlan"}]`,
		"long":      `[` + long + `{"Type":"host-gw"}]`,
		"far":       fmt.Sprintf(`[{"Type":"host-gw","Since":%d},{"Type":"vxlan","Since":%d}]`, int64(math.MaxInt64), int64(math.MinInt64)),
		"farther":   `[{"Type":"host-gw","Since":1e300}]`,
		"withdrawn": `[{"Type":"host-gw","Until":9},{"Type":"vxlan","Until":-9}]`,
		"unknown":   `[{"Type":"geneve","Since":99},{"Type":""},{}]`,
		"no list":   `{"Type":"host-gw"}`,
		"null":      `[null,null]`,
		"numbers":   `[1,2]`,
		"deep":      `[{"Type":"vxlan","Data":{"Ways":[{"Type":"vxlan","Data":{"VNI":1}}]}}]`,
		"copied":    `[{"Type":"host-gw"},{"Type":"vxlan","Data":{"VNI":1,"VtepMAC":"MAC","Port":8472}}]`,
		"bad data":  `[{"Type":"vxlan","Since":9,"Data":"x"},{"Type":"vxlan","Data":{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}}]`,
	} {
		c := newCluster(t, 3, confs[0])
		a, victim := c.members[0], c.members[1]
		c.restart(a, confs[1])
		c.restart(victim, confs[1])
		for range 2 {
			for _, m := range c.members {
				m.works = true
				c.see(m)
				c.publish(m)
			}
		}
		c.see(a)
		before, _ := a.desired()
		local := netip.MustParseAddr("192.0.2.66")
		data := fmt.Appendf(nil, `{"VNI":1,"VtepMAC":"0a:00:00:00:00:66","Port":8472,"Ways":%s}`, ways)
		data = bytes.ReplaceAll(data, []byte(`"MAC"`), []byte(`"`+macOf(victim)+`"`))
		hostile := subnet.Lease{Node: "hostile", Backend: "vxlan", Stacks: []subnet.Stack{{Subnet: netip.MustParsePrefix("10.244.66.0/24"), Underlay: local, Data: data}}}
		a.seen = append(a.seen, hostile)
		after, _ := a.desired()
		for key, o := range before {
			if after[key] != o {
				t.Errorf("%s: %s became %v", name, o, after[key])
			}
		}
		if name == "long" && after[netstate.Neigh{Dev: "flannel.1", IP: hostile.Stacks[0].Subnet.Addr()}.Key()] == nil {
			t.Errorf("%s: it is not reached by its record's own backend:\n%s", name, after)
		}
		if tr, ok := a.backend.(backend.Transition); ok {
			snap := a.snapshot()
			if lease, err := tr.Lease(a.node, a.lease, a.lease, &snap, true, c.now); err != nil || len(lease.Stacks[0].Data) > 1000 {
				t.Errorf("%s: it publishes %s: %v", name, text(lease), err)
			}
		}
	}
}

// macOf is the address of a node's VTEP.
func macOf(m *member) string {
	state, _ := m.desired()
	for _, o := range state {
		if v, ok := o.(netstate.VXLAN); ok {
			return v.MAC.String()
		}
	}
	return ""
}

// TestClockAhead: a clock that was a year ahead when a way was offered or withdrawn keeps no later change from its end.
func TestClockAhead(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for name, until := range map[string]string{"offered": `"Since"`, "withdrawn": `"Until"`} {
		t.Run(name, func(t *testing.T) {
			c, to := newCluster(t, 3, confs[0]), confs[1]
			c.now = c.now.Add(year)
			for _, m := range c.members {
				c.restart(m, to)
			}
			for range 10 {
				for _, m := range c.members {
					m.works = true
					c.see(m)
					c.publish(m)
				}
				if strings.Contains(text(c.members[2].lease), until) {
					break
				}
			}
			if !strings.Contains(text(c.members[2].lease), until) {
				t.Fatalf("it publishes %s", text(c.members[2].lease))
			}
			c.now = c.now.Add(-year)
			if name == "offered" {
				to = confs[0]
				for _, m := range c.members {
					c.restart(m, to)
				}
			}
			c.settle()
			c.check("at the end")
			c.plain(to)
		})
	}
}
