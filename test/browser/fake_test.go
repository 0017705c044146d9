package browser

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/packet"
	"github.com/twill-net/twill/target"
)

// hostile is what a cluster may hold: names that would be markup, and one that turns the writing around.
var hostile = []string{`<script>window.broken=1</script>`, `"><img src=x onerror=window.broken=1>`, "\u202egnp.exe"}

// fake is a cluster that is not there, for what no lab can show: many nodes, and hostile names.
type fake struct {
	nodes []doctor.Status
	pods  []target.Pod
	drops atomic.Uint64 // of node2
}

// newFake makes n nodes, of which the first has a finding and does not reach the last.
func newFake(n int) *fake {
	f := &fake{}
	for i := 1; i <= n; i++ {
		s := doctor.Status{Node: fmt.Sprint("node", i), Backend: "vxlan", Agent: "ready", MTU: 1450, PID: i, Changes: 20,
			Subnets: []string{fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)}, Underlay: []string{fmt.Sprintf("192.168.%d.%d", i/250, i%250)}}
		for j := 1; j <= n; j++ {
			if j != i {
				s.Peers = append(s.Peers, doctor.PeerStatus{Node: fmt.Sprint("node", j), InSync: true})
			}
		}
		f.nodes = append(f.nodes, s)
		f.pods = append(f.pods, target.Pod{ID: fmt.Sprintf("shop/web-%d", i), Node: s.Node, Addrs: []string{fmt.Sprintf("10.%d.%d.2", i/256, i%256)}})
	}
	last := &f.nodes[0].Peers[n-2]
	last.InSync, last.Reason = false, "route missing"
	f.nodes[0].Findings = []string{"route-missing"}
	for _, name := range hostile {
		f.pods = append(f.pods, target.Pod{ID: "shop/" + name, Node: "node1", Addrs: []string{"10.0.1.9"}})
	}
	return f
}

func (f *fake) View() target.View {
	return target.View{Kind: "cluster", Name: hostile[0], Version: "test",
		Can: target.Can{Walk: true, Trace: true, Doctor: true, Probe: true, History: true, Live: true}}
}

func (f *fake) Status(context.Context) (doctor.StatusReport, error) {
	nodes := slices.Clone(f.nodes)
	nodes[1].Drops = map[string]uint64{"flannel.1": 8 + f.drops.Load(), "cni0": 0}
	return doctor.StatusReport{Nodes: nodes, Silent: []string{"node9000: " + hostile[1]}}, nil
}

func (f *fake) Places(context.Context) (target.Places, error) {
	return target.Places{Segments: []target.Segment{}, Pods: f.pods, Services: []target.Service{{ID: "service/shop/web", Ports: []uint16{80}}}}, nil
}

func (f *fake) Doctor(context.Context, doctor.Probing, ...netip.Addr) (doctor.Survey, error) {
	return doctor.Survey{Nodes: []doctor.Diagnosis{{Node: "node1", Findings: []doctor.Finding{finding}}}}, nil
}

const mend = "ip route add 10.0.3.0/24 via 10.0.3.0 dev flannel.1 onlink"

var finding = doctor.Finding{ID: "route-missing", Title: "A route to a peer is missing", Place: "node1", Object: hostile[1],
	Expected: "a route", Actual: "none", Why: "Packets to its pods take the default route.", Fix: mend + "   (or start twilld)", Command: mend}

func (f *fake) Trace(_ context.Context, from, to string, how target.Tracing) (doctor.Trace, error) {
	if how.Live {
		return doctor.Trace{Src: from, Dst: to, Traffic: &doctor.Traffic{Seconds: 3, Ends: [2]string{from, to},
			Forward: []doctor.Sighting{{Point: packet.Point{Host: from, Dev: "eth0", Out: true}, Packets: 15, Frame: hostile[0]}, {Point: packet.Point{Host: "node1", Dev: "cni0"}, Packets: 15}},
			Drops:   []locate.Drop{{Host: "node1", Dev: "cni0", Reason: "NETFILTER_DROP", Function: "nf_hook_slow", Packets: 15}}}}, nil
	}
	stop := doctor.Step{Node: "node1", Place: "route", Entry: "none for 10.0.3.2", Verdict: "no route to host", Fix: finding.Fix, Command: finding.Command}
	return doctor.Trace{Src: from, Dst: to, Forward: []doctor.Step{{Node: "node1", Place: "bridge", Entry: "cni0"}, stop}, Stopped: &stop, Lost: []doctor.Finding{finding}}, nil
}

func (f *fake) History(context.Context, time.Duration) (doctor.HistoryReport, error) {
	now := time.Now().UTC()
	return doctor.HistoryReport{Nodes: []doctor.NodeHistory{{Node: "node1", Since: now.Add(-time.Hour), Events: []doctor.Event{
		{At: now.Add(-50 * time.Minute), Kind: "start", Text: "the agent started"},
		{At: now.Add(-20 * time.Minute), Kind: "lease", Peer: hostile[0], Text: "joined: " + hostile[0]},
		{At: now.Add(-10 * time.Minute), Kind: "repair", Text: "+ route 10.0.3.0/24", Took: 0.2},
		{At: now.Add(-10*time.Minute + 5*time.Second), Kind: "error", Text: "no buffer space", Count: 3}}}}}, nil
}

// Walk arrives at every pod but those of the last node.
func (f *fake) Walk(_ context.Context, from, to string, _ bool) (walk.Path, error) {
	frame := packet.Frame{Length: 98, Layers: []packet.Layer{{Kind: "eth", From: "02:00:00:00:00:01", To: "02:00:00:00:00:02"}, {Kind: "ip", From: "10.0.1.2", To: "10.0.2.2", Info: "ttl 64"}}}
	p := walk.Path{From: from, To: to, Src: netip.MustParseAddr("10.0.1.2"), Dst: netip.MustParseAddr("10.0.2.2"), Arrived: to != f.pods[2].ID, Reply: "answered after 0.20 ms", Steps: []walk.Step{
		{Sighting: packet.Sighting{Point: packet.Point{Host: from, Dev: "eth0", Out: true}, Frame: frame}, Entries: []walk.Entry{{Table: "route", Text: "default via 10.0.1.1"}}},
		{Sighting: packet.Sighting{Point: packet.Point{Host: "node1", Dev: "cni0"}, Frame: frame}, Entries: []walk.Entry{{Table: "route", Text: "10.0.2.0/24 via 10.0.2.0 dev flannel.1 onlink"}}},
	}}
	if p.Arrived {
		p.Steps = append(p.Steps, walk.Step{Sighting: packet.Sighting{Point: packet.Point{Host: "node1", Dev: "flannel.1", Out: true}, Frame: frame}}, walk.Step{Sighting: packet.Sighting{Point: packet.Point{Host: to, Dev: "eth0"}, Frame: frame}})
	}
	return p, nil
}
