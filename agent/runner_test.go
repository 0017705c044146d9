package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// mover is a backend that runs: each of its parts fails once.
type mover struct {
	prepared, begun atomic.Int32
	seen            chan string // what the views said
	ended           chan struct{}
}

func (*mover) MTU(node backend.Node) int { return backend.SmallestMTU(node.Underlays) }

func (m *mover) Publish(backend.Node, subnet.Lease, netstate.Family) (json.RawMessage, error) {
	if m.prepared.Load() < 2 {
		return nil, errors.New("published before it was prepared")
	}
	return json.RawMessage(`"ready"`), nil
}

func (*mover) Desired(backend.Node, subnet.Snapshot) (netstate.State, []subnet.Skip) {
	return netstate.State{}, nil
}

func (m *mover) Prepare(context.Context, backend.Env) error {
	if m.prepared.Add(1) == 1 {
		return errors.New("not prepared yet")
	}
	return nil
}

func (m *mover) Run(ctx context.Context, env backend.Env, views <-chan backend.Input) error {
	var v backend.Input
	select {
	case v = <-views:
	case <-ctx.Done():
		return nil
	}
	if m.begun.Add(1) == 1 {
		return errors.New("not running yet")
	}
	env.Log.Info("moves", "dir", filepath.Base(env.Dir))
	m.seen <- string(v.Snapshot.Local.Stacks[0].Data) + " " + v.Snapshot.Local.Stacks[0].Underlay.String()
	<-ctx.Done()
	close(m.ended)
	return nil
}

// TestRunner: it is prepared before the lease is published, started with a view of what the kernel
// has been brought to, started again when it fails, and ends with the agent.
func TestRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, m := newNode(t), &mover{seen: make(chan string, 1), ended: make(chan struct{})}
		n.backend = m
		stop := n.start()
		select {
		case got := <-m.seen:
			if got != `"ready" 192.168.33.101` {
				t.Errorf("the view says %s", got)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no view\n%s", n.log.String())
		}
		stop()
		<-m.ended
		for _, want := range []string{`msg="prepare the backend" err="not prepared yet"`, `msg="run the backend" err="not running yet"`, "msg=moves node=node1 dir="} {
			if !strings.Contains(n.log.String(), want) {
				t.Errorf("no %s in\n%s", want, n.log.String())
			}
		}
		if strings.Contains(n.log.String(), "published before") {
			t.Error(n.log.String())
		}
	})
}

// TestRunnerResumes: after a restart it gets the leases that it had, before the store has said
// anything. After a boot there is nothing yet on which it could stand.
func TestRunnerResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, m := newNode(t), &mover{seen: make(chan string, 9), ended: make(chan struct{})}
		m.prepared.Store(1)
		m.begun.Store(1)
		n.backend = m
		stop := n.start()
		n.eventually("a checkpoint", func() bool { _, err := os.Stat(n.checkpoint()); return err == nil && n.ready() })
		<-m.seen
		stop()
		n.must(os.Remove(n.leases())) // and no store any more
		n.must(os.Mkdir(n.leases(), 0o755))

		m.ended = make(chan struct{})
		stop = n.start()
		if got := <-m.seen; got != `"ready" 192.168.33.101` || strings.Contains(n.log.String(), "going on with the checkpoint") {
			t.Errorf("the view says %s\n%s", got, n.log.String())
		}
		stop()

		env, err := subnet.ReadEnv(n.agent.Settings.SubnetFile)
		n.must(err)
		env.BootID = "another"
		n.must(os.WriteFile(n.agent.Settings.SubnetFile, env.Format(), 0o644))
		m.ended = make(chan struct{})
		stop = n.start()
		n.eventually("the store is asked", func() bool { return strings.Contains(n.log.String(), "ask the store") })
		if len(m.seen) > 0 {
			t.Errorf("after a boot it got %s", <-m.seen)
		}
		stop()
	})
}

// TestReadyWithRunner: pods cannot count on a network whose packets nobody moves.
func TestReadyWithRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a := New(Config{Planner: Planner{Backend: &mover{}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
		a.status.update(true, false, nil)
		mustBeReady := func(words string) {
			t.Helper()
			if err := a.status.Ready(); (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
				t.Errorf("ready: %v, want %q", err, words)
			}
		}
		mustBeReady("has not started yet")
		a.status.updateRunner(nil)
		a.env().Log.Info("moving packets", "port", 8285)
		mustBeReady("")
		if r := a.report().Runner; !r.Running || r.Says != "moving packets port=8285" || !r.Since.Equal(time.Now()) {
			t.Errorf("reports %+v", r)
		}
		time.Sleep(time.Second)
		for range 2 {
			a.env().Log.Error("send a packet", "port", 8285, "err", errors.New("no buffer"))
		}
		if strings.Count(log.String(), `level=ERROR msg="send a packet" node="" port=8285 err="no buffer"`) != 1 {
			t.Errorf("an error is not logged once, as one:\n%s", log.String())
		}
		a.status.updateRunner(errors.New("no such device"))
		if r := a.report().Runner; r.Running || r.Error != "no such device" || !r.Since.Equal(time.Now()) || r.Says != "moving packets port=8285" {
			t.Errorf("reports %+v", r)
		}
		mustBeReady("") // it is started again at once
		time.Sleep(2 * unreadyAfter)
		a.status.updateRunner(errors.New("port in use"))
		mustBeReady("the backend moves no packets: port in use")
		a.status.updateRunner(nil)
		mustBeReady("")
	})
}

// TestOverlays: the device that has the family's address, whatever else encapsulates.
func TestOverlays(t *testing.T) {
	addr := func(dev, prefix string) netstate.Addr {
		return netstate.Addr{Dev: dev, Prefix: netip.MustParsePrefix(prefix)}
	}
	v4, v6 := addr("flannel-wg", "10.244.1.0/32"), addr("flannel-wg-v6", "fc00::/128")
	want := netstate.NewState(netstate.Tun{Name: "flannel-wg"}, netstate.Tun{Name: "flannel-wg-v6"}, netstate.Bridge{Name: "cni0"},
		v4, v6, addr("cni0", "10.244.1.1/24"), addr("cni0", "fc00::1/64"))
	for range 20 { // maps have no order
		a, b := overlays(want, netstate.IPv4), overlays(want, netstate.IPv6)
		if !slices.Equal(a, []string{"flannel-wg"}) || !slices.Equal(b, []string{"flannel-wg-v6"}) {
			t.Fatalf("IPv4 %q, IPv6 %q", a, b)
		}
	}
	delete(want, v6.Key())
	if got := overlays(want, netstate.IPv6); len(got) > 0 {
		t.Errorf("without an address: %q", got)
	}
}

// teller is a mover that says itself how it does.
type teller struct {
	mover
	say chan backend.Health
}

func (*teller) Reports() {}

func (m *teller) Run(ctx context.Context, env backend.Env, _ <-chan backend.Input) error {
	for {
		select {
		case h := <-m.say:
			env.Report(h)
		case <-ctx.Done():
			return nil
		}
	}
}

// TestReporter: a node whose backend reports is ready when that has worked once. An attempt that fails changes nothing, and
// what is known to be wrong for half a minute does.
func TestReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, m := newNode(t), &teller{say: make(chan backend.Health)}
		m.prepared.Store(1)
		n.backend = m
		stop := n.start()
		defer stop()
		time.Sleep(time.Minute)
		if err := n.agent.status.Ready(); err == nil || !strings.Contains(err.Error(), "does not lead packets to this node's pods yet") {
			t.Errorf("before its first report: %v", err)
		}
		full := errors.New("the table is full")
		for _, step := range []struct {
			name  string
			says  backend.Health
			ready string // part of the error; empty: ready
		}{
			{"a failure", backend.Health{Err: full, Calls: 2, Failures: 1}, "yet: the table is full"},
			{"it worked", backend.Health{Seen: true, Calls: 4, Writes: 1, Failures: 1}, ""},
			{"a failure later", backend.Health{Seen: true, Err: full, Calls: 5, Writes: 1, Failures: 2}, ""},
			{"wrong for a moment", backend.Health{Seen: true, Wrong: time.Now().Add(-10 * time.Second)}, ""},
			{"wrong", backend.Health{Seen: true, Wrong: time.Now().Add(-time.Minute), Troubles: []backend.Trouble{{ID: "x"}}}, "has not led packets"},
			{"right again", backend.Health{Seen: true}, ""},
		} {
			m.say <- step.says
			time.Sleep(2 * time.Second)
			err := n.agent.status.Ready()
			if (err == nil) != (step.ready == "") || err != nil && !strings.Contains(err.Error(), step.ready) {
				t.Errorf("%s: ready %v, want %q", step.name, err, step.ready)
			}
			if got := n.agent.report().Runner; len(got.Troubles) != len(step.says.Troubles) || (got.Error == "") != (step.says.Err == nil) {
				t.Errorf("%s: /status says %+v", step.name, got)
			}
		}
	})
}

// TestRunnerSeesOffers: in the middle of a change of the backend, a node that has never had another one gives its Runner the peers
// that offer its way beside the one of before, whenever it gives it peers.
func TestRunnerSeesOffers(t *testing.T) {
	for _, to := range []int{4, 6} { // udp, wireguard in userspace
		c := newChanger(t, to)
		offers := func(node int) subnet.Lease {
			lease := c.lease(to, node)
			data := cmp.Or(string(lease.Stacks[0].Data), "null")
			lease.Backend, lease.Stacks[0].Data = "host-gw", fmt.Appendf(nil, `{"Ways":[{"Type":%q,"Since":9,"Data":%s},{"Type":"host-gw"}]}`, ways[to].name, data)
			return lease
		}
		c.peers = []subnet.Lease{offers(2), offers(3)}
		a, _ := c.start(to)
		mustSee := func(what string, want int) {
			t.Helper()
			in := <-a.views
			if peers, skips := backend.Peers([]netip.Prefix{a.Network.Pools[0].Network}, in.Node, in.Snapshot); len(peers) != want {
				t.Errorf("%s, %s: the Runner sees %d peers, want %d: %v", ways[to].name, what, len(peers), want, skips)
			}
		}
		mustSee("after a reconcile", 2)
		c.peers = append(c.peers, offers(4))
		a.leases.newest.Store(&subnet.Snapshot{Local: c.local, Peers: c.peers})
		if !a.incremental(t.Context()) {
			t.Errorf("%s: a peer that joins needs a reconcile", ways[to].name)
		}
		mustSee("after an incremental update", 3)
		saved := <-a.saves
		saved.Peers[0].Stacks[0] = saved.Peers[0].Stacks[0].WithEarlier([]netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")})
		a.earlier.Store(&Saved{Node: "node1", Snapshot: saved})
		a.sendEarlierView(a.loop.node)
		mustSee("after a restart, with a subnet of before", 4)
	}
}
