package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/subnet"
)

// claiming is a lease that publishes something.
func claiming(node, what string) subnet.Lease {
	return subnet.Lease{Node: node, Backend: "vxlan", Stacks: []subnet.Stack{{Subnet: netip.MustParsePrefix("10.244.2.0/24"), Data: []byte(what)}}}
}

// claim is all that a stack publishes.
func claim(s subnet.Stack) []string { return []string{string(s.Data)} }

func snapshot(peers ...subnet.Lease) *subnet.Snapshot { return &subnet.Snapshot{Peers: peers} }

// winner is the node that the order puts first, empty if there is no order between the two.
func winner(order map[subnet.Claim]int, what, a, b string) string {
	first, ok := order[subnet.Claim{Node: a, What: what}]
	second, also := order[subnet.Claim{Node: b, What: what}]
	switch {
	case !ok || !also || first == second:
		return ""
	case first < second:
		return a
	}
	return b
}

// TestPeersClaims: whoever was seen with something first keeps it, whatever the other one does, and
// also over a restart.
func TestPeersClaims(t *testing.T) {
	now := time.Now()
	p := newPeers(claim)
	see := func(peers ...subnet.Lease) map[subnet.Claim]int {
		now = now.Add(time.Minute)
		return p.follow(snapshot(peers...), now).Claims
	}
	if order := see(claiming("old", "x"), claiming("victim", "m")); order != nil {
		t.Errorf("an order without a dispute: %v", order)
	}
	steps := map[string][]subnet.Lease{
		"1 it copies":                       {claiming("old", "m"), claiming("victim", "m")},
		"2 the victim is away":              {claiming("old", "m")},
		"3 and comes back":                  {claiming("old", "m"), claiming("victim", "m")},
		"4 a third one":                     {claiming("old", "m"), claiming("third", "m"), claiming("victim", "m")},
		"5 it copies another one, and this": {claiming("old", "y"), claiming("third", "m"), claiming("victim", "m")},
		"6 again":                           {claiming("old", "m"), claiming("third", "m"), claiming("victim", "m")},
	}
	for _, step := range []string{"1 it copies", "2 the victim is away", "3 and comes back", "4 a third one", "5 it copies another one, and this", "6 again"} {
		order := see(steps[step]...)
		if got := winner(order, "m", "old", "victim"); got != "victim" && len(steps[step]) > 1 && step[0] != '5' {
			t.Errorf("%s: %v", step, order)
		}
		if got := winner(order, "m", "third", "victim"); got != "victim" && step[0] > '3' {
			t.Errorf("%s: the third one: %v", step, order)
		}
	}
	last := *p.last
	p = newPeers(claim)
	p.remember(last)
	order := see(claiming("old", "m"), claiming("third", "m"), claiming("late", "m"), claiming("victim", "m"))
	for _, other := range []string{"old", "third", "late"} {
		if winner(order, "m", other, "victim") != "victim" {
			t.Errorf("after a restart %s: %v", other, order)
		}
	}
	p = newPeers(claim)
	if order := see(claiming("old", "m"), claiming("victim", "m")); winner(order, "m", "old", "victim") != "" {
		t.Errorf("without any memory one of two is first: %v", order)
	}
}

// TestPeersClaimsOfANodeMadeAnew: whoever copies what a node published while its record is gone for
// a moment does not get it.
func TestPeersClaimsOfANodeMadeAnew(t *testing.T) {
	p, now := newPeers(claim), time.Now()
	p.follow(snapshot(claiming("old", "x"), claiming("victim", "m")), now)
	p.follow(snapshot(claiming("old", "x")), now.Add(time.Second))
	p.follow(snapshot(claiming("old", "m")), now.Add(2*time.Second))
	order := p.follow(snapshot(claiming("old", "m"), claiming("victim", "m")), now.Add(3*time.Second)).Claims
	if got := winner(order, "m", "old", "victim"); got != "victim" {
		t.Errorf("%q has it: %v", got, order)
	}
}

// TestPeersForget: what is gone takes no memory for ever.
func TestPeersForget(t *testing.T) {
	now, p := time.Now(), newPeers(claim)
	for i := range 1000 {
		now = now.Add(time.Second)
		p.follow(snapshot(claiming(fmt.Sprint("n", i), fmt.Sprint("m", i)), claiming("both", "m7")), now)
	}
	if len(p.nodes) > 200 || len(p.claims.nodes) > 200 || p.claims.disputes != 1 {
		t.Errorf("%d nodes, %d claims, %d disputes are remembered; want two nodes, those of the last 100 s, and the rivals of one that is there", len(p.nodes), len(p.claims.nodes), p.claims.disputes)
	}
}

// TestPeersRest follows every node at once but the one whose record never rests, which is followed
// now and then, and in the end.
func TestPeersRest(t *testing.T) {
	now, p := time.Now(), newPeers(claim)
	mad := func(i int) subnet.Lease { return claiming("mad", fmt.Sprint(i)) }
	peers := []subnet.Lease{claiming("a", "a"), mad(0), claiming("z", "z")}
	last, changes := p.follow(snapshot(peers...), now), 0
	for i := range 2500 { // 25 changes a second
		now = now.Add(40 * time.Millisecond)
		now0 := []subnet.Lease{peers[0], mad(i), peers[2]}
		switch i % 3 {
		case 1:
			now0 = []subnet.Lease{peers[0], peers[2]} // it leaves
		case 2:
			now0 = []subnet.Lease{peers[0], peers[2]} // it cannot be read
		}
		raw := snapshot(now0...)
		if i%3 == 2 {
			raw.Skips = []subnet.Skip{{Node: "mad", Code: subnet.Unreadable, Detail: fmt.Sprint(i)}}
		}
		if i == 1000 {
			peers[2] = claiming("z", "moved")
			raw.Peers[len(raw.Peers)-1] = peers[2]
		}
		snap := p.follow(raw, now)
		if snap != last {
			changes++
		}
		if last = snap; !has(snap, peers[0]) || !has(snap, peers[2]) {
			t.Fatalf("change %d: others are not followed: %v", i, snap.Peers)
		}
	}
	if most := peerChanges + int(100*time.Second/peerRest) + 2; changes > most || changes < peerChanges {
		t.Errorf("%d changes in 100 s were followed, want %d and one in %v", changes, peerChanges, peerRest)
	}
	final := snapshot(peers[0], mad(-1), peers[2])
	if p.follow(final, now); p.delayed != 1 || p.wait <= 0 || p.wait > peerRest {
		t.Errorf("%d records wait for %s", p.delayed, p.wait)
	}
	if snap := p.follow(final, now.Add(p.wait)); !has(snap, mad(-1)) || p.delayed != 0 {
		t.Errorf("in the end it is %v", snap.Peers)
	}
}

func has(snap *subnet.Snapshot, lease subnet.Lease) bool {
	for _, l := range snap.Peers {
		if l.Equal(lease) {
			return true
		}
	}
	return false
}

// TestRunKeepsTheVictim: a peer that copies a younger one's MAC changes nothing for it, not even
// for an agent that starts again.
func TestRunKeepsTheVictim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.addPeer("old", "10.244.3.0/24", "192.168.33.103", "0e:00:00:00:00:03")
		n.addPeer("victim", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
		const fdb = "fdb 0e:00:00:00:00:02 dst 192.168.33.102 dev flannel.1 self permanent"
		const copied = "fdb 0e:00:00:00:00:02 dst 192.168.33.103"
		stop := n.start()
		n.eventually("both are reached", func() bool { return n.has(fdb) && n.has("10.244.3.0/24") && n.ready() })
		n.setPeer("old", "10.244.3.0/24", "192.168.33.103", "0e:00:00:00:00:02")
		n.eventually("the copy is left out", func() bool { return !n.has("10.244.3.0/24") })
		if !n.has(fdb) || n.has(copied) {
			t.Errorf("the victim's MAC leads elsewhere:\n%s", n.state())
		}
		n.eventually("that is in the checkpoint", func() bool {
			saved, err := ReadCheckpoint(n.checkpoint())
			return err == nil && len(saved.Snapshot.Claims) == 2
		})
		stop()
		saved, err := ReadCheckpoint(n.checkpoint())
		n.must(err)
		if !maps.Equal(saved.Snapshot.Claims, n.agent.leases.peers.last.Claims) {
			t.Errorf("the checkpoint has %v, want %v", saved.Snapshot.Claims, n.agent.leases.peers.last.Claims)
		}
		stop = n.start()
		defer stop()
		n.eventually("in sync again", n.ready)
		n.eventually("told once more", func() bool { return n.logs("a peer is left out") == 2 })
		if !n.has(fdb) || n.has(copied) {
			t.Errorf("after a restart the victim's MAC leads elsewhere:\n%s", n.state())
		}
	})
}

// BenchmarkFollow: one record among 5,000 changes, and waits.
func BenchmarkFollow(b *testing.B) {
	raw := snapshot()
	for i := range 5000 {
		raw.Peers = append(raw.Peers, subnet.Lease{Node: fmt.Sprint("node-", i), Backend: "vxlan", Stacks: []subnet.Stack{{
			Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), Underlay: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}),
			Data: fmt.Appendf(nil, `{"VNI":1,"VtepMAC":"02:00:00:00:%02x:%02x"}`, i>>8, i&255)}}})
	}
	p, now := newPeers(claim), time.Now()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		raw.Peers[7] = claiming("node-7", fmt.Sprint(i))
		p.follow(raw, now)
	}
}

// TestPeersStand: while records wait, a change of another node's is followed, and they stand as they were last followed,
// also of nodes that are gone or say something else now.
func TestPeersStand(t *testing.T) {
	now, p := time.Now(), newPeers(nil)
	skip := func(i int) subnet.Skip {
		return subnet.Skip{Node: "bad", Code: subnet.Unreadable, Detail: fmt.Sprint(i)}
	}
	for i := range peerChanges + 2 { // the first is no change, and the last one is too many
		raw := snapshot(claiming("a", "a"), claiming("mad", fmt.Sprint(i)), claiming("gone2", fmt.Sprint(i)), claiming("gone1", fmt.Sprint(i)), claiming("z", "z"))
		raw.Skips = []subnet.Skip{skip(i)}
		p.follow(raw, now)
	}
	raw := snapshot(claiming("a", "a"), claiming("bad", "lease"), claiming("z", "moved"))
	raw.Skips = []subnet.Skip{{Node: "mad", Code: subnet.Unreadable, Detail: "now"}}
	text := func(snap *subnet.Snapshot) (text string) {
		for _, l := range snap.Peers {
			text += l.Node + " " + string(l.Stacks[0].Data) + ", "
		}
		for _, s := range snap.Skips {
			text += s.Node + " " + s.Detail + ", "
		}
		return text
	}
	if got, want := text(p.follow(raw, now)), strings.ReplaceAll("a a, z moved, mad N, gone1 N, gone2 N, bad N, ", "N", fmt.Sprint(peerChanges)); got != want || p.delayed != 4 {
		t.Errorf("with %d records that wait followed is\n%s, want\n%s", p.delayed, got, want)
	}
	if got, want := text(p.follow(raw, now.Add(time.Minute))), "a a, bad lease, z moved, mad now, "; got != want || p.delayed != 0 {
		t.Errorf("a minute later followed is\n%s, want\n%s", got, want)
	}
}

// TestPeersClaimsOfWays: a node that has two backends for a while keeps what it published first for both. To a node that has the
// newer one alone, what it published for that counts.
func TestPeersClaimsOfWays(t *testing.T) {
	const one, both = `{"VNI":1,"VtepMAC":"0a:00:00:00:00:%[1]s"}`,
		`{"VNI":1,"VtepMAC":"0a:00:00:00:00:%[1]s","Ways":[{"Type":"vxlan","Since":9,"Data":{"VNI":7,"VtepMAC":"0a:00:00:00:07:%[1]s"}},{"Type":"vxlan"}]}`
	for _, kept := range [][]json.RawMessage{nil, {json.RawMessage(`{"Type": "vxlan"}`)}} {
		conf, err := subnet.ParseConfig([]byte(`{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": 7}}`))
		must(t, err)
		conf.Kept = kept
		b, _, err := registry.NewKept(conf)
		must(t, err)
		l, now := newLeases(b), time.Now()
		see := func(peers ...subnet.Lease) map[subnet.Claim]int {
			now = now.Add(time.Minute)
			return l.peers.follow(snapshot(peers...), now).Claims
		}
		other, victim := claiming("other", fmt.Sprintf(one, "01")), claiming("victim", fmt.Sprintf(one, "02"))
		see(other, victim)
		victim = claiming("victim", fmt.Sprintf(both, "02"))
		see(other, victim)
		order := see(claiming("other", fmt.Sprintf(both, "02")), victim)
		for _, mac := range []string{"0a:00:00:00:07:02 true", "0a:00:00:00:00:02 true"}[:1+len(kept)] {
			if got := winner(order, mac, "other", "victim"); got != "victim" {
				t.Errorf("%d backends: %s is %q's, in the order %v", 1+len(kept), mac, got, order)
			}
		}
	}
}
