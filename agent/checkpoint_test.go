package agent

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/twill-net/twill/subnet"
)

func someSnapshot() subnet.Snapshot {
	stack := func(p, a string) subnet.Stack {
		return subnet.Stack{Subnet: prefixes(p)[0], Underlay: addrs(a)[0], Data: json.RawMessage(`{"VNI":1,"VtepMAC":"0a:00:00:00:00:01"}`)}
	}
	return subnet.Snapshot{
		Local: subnet.Lease{Node: "node1", Backend: "vxlan", Stacks: []subnet.Stack{stack("10.244.1.0/24", "192.168.33.101")}},
		Peers: []subnet.Lease{{Node: "node2", Backend: "vxlan", Stacks: []subnet.Stack{
			stack("10.244.2.0/24", "192.168.33.102"), stack("fd00:244:0:2::/64", "fd33::102")}}},
		Skips:  []subnet.Skip{{Node: "node3", Code: subnet.Unreadable, Detail: "no public IP"}},
		Claims: map[subnet.Claim]int{{Node: "node2", What: "0a:00:00:00:00:01"}: 4},
	}
}

func writeCheckpoint(path string, c checkpoint) error {
	data, err := json.Marshal(c)
	return errors.Join(err, os.WriteFile(path, data, 0o600))
}

func TestCheckpointRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoint.json")
	want := someSnapshot()
	c := checkpoint{Version: checkpointVersion, Node: "node1", Network: json.RawMessage(`{"Network":"10.244.0.0/16"}`), Local: want.Local, Peers: want.Peers}
	for _, s := range want.Skips {
		c.Skips = append(c.Skips, savedSkip(s))
	}
	for claim, order := range want.Claims {
		c.Claims = append(c.Claims, savedClaim{claim, order})
	}
	must(t, writeCheckpoint(path, c))
	got, err := readCheckpoint(path)
	if err != nil || !reflect.DeepEqual(got.snapshot(), want) {
		t.Errorf("read %+v, err %v", got.snapshot(), err)
	}
	if saved, err := ReadCheckpoint(path); err != nil || !reflect.DeepEqual(saved.Underlays(), addrs("192.168.33.101")) {
		t.Errorf("addresses %v, %v", saved.Underlays(), err)
	}
}

// TestSaveCheckpoint: the file has all that a snapshot says, and is written when that changed and only then.
func TestSaveCheckpoint(t *testing.T) {
	a := New(Config{
		Planner: Planner{Node: "node1", Network: subnet.Config{Backend: "vxlan", Raw: []byte(`{"Network":"10.244.0.0/16"}`)}}, Log: slog.New(slog.DiscardHandler),
		Settings: Settings{Bridge: "br7", Checkpoint: filepath.Join(t.TempDir(), "state", "checkpoint.json"), Choice: Choice{Patterns: []*regexp.Regexp{regexp.MustCompile("^eth")}}}})
	a.saveCheckpoint(nil, someSnapshot())
	got, err := ReadCheckpoint(a.Settings.Checkpoint)
	if err != nil || !reflect.DeepEqual(got, Saved{"node1", a.Network.Raw, nil, someSnapshot(), &a.Settings}) {
		t.Errorf("read %+v, %v", got, err)
	}
	for name, change := range map[string]func(*subnet.Snapshot){
		"nothing":       func(*subnet.Snapshot) {},
		"own lease":     func(s *subnet.Snapshot) { s.Local.Stacks[0].Underlay = addrs("192.168.33.111")[0] },
		"a peer":        func(s *subnet.Snapshot) { s.Peers[0].Stacks[0].Underlay = addrs("192.168.33.112")[0] },
		"no peer":       func(s *subnet.Snapshot) { s.Peers = nil },
		"other peers":   func(s *subnet.Snapshot) { s.Peers = append(s.Peers, s.Local) },
		"another skip":  func(s *subnet.Snapshot) { s.Skips[0].Node = "node4" },
		"no skip":       func(s *subnet.Snapshot) { s.Skips = nil },
		"another claim": func(s *subnet.Snapshot) { s.Claims[subnet.Claim{Node: "node3", What: "x"}] = 5 },
	} {
		must(t, os.Remove(a.Settings.Checkpoint))
		before, snap := someSnapshot(), someSnapshot()
		change(&snap)
		if saved := a.saveCheckpoint(&before, snap); (saved == &before) != (name == "nothing") {
			t.Errorf("%s changed: %v counts as written", name, saved)
		}
		if _, err := os.Stat(a.Settings.Checkpoint); (err == nil) != (name != "nothing") {
			t.Errorf("%s changed: %v", name, err)
		}
		if name == "nothing" {
			a.saveCheckpoint(nil, snap)
		}
	}
}

// TestCheckpointThatCannotBeWritten leaves nothing, and is tried again.
func TestCheckpointThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	a := New(Config{Settings: Settings{Checkpoint: filepath.Join(dir, "checkpoint.json")}, Planner: Planner{Network: subnet.Config{Raw: []byte(`{}`)}}, Log: slog.New(slog.DiscardHandler)})
	must(t, os.MkdirAll(filepath.Join(a.Settings.Checkpoint, "full"), 0o755))
	saved := a.saveCheckpoint(nil, someSnapshot())
	if list, _ := os.ReadDir(dir); len(list) != 1 || saved != nil {
		t.Errorf("left are %v; it counts as written: %t", list, saved != nil)
	}
	must(t, os.RemoveAll(a.Settings.Checkpoint))
	a.saveCheckpoint(saved, someSnapshot())
	if _, err := ReadCheckpoint(a.Settings.Checkpoint); err != nil {
		t.Error(err)
	}
}

// TestDamagedCheckpoint: leases that cannot have come from a store are none.
func TestDamagedCheckpoint(t *testing.T) {
	for stack, good := range map[string]bool{
		`{"Subnet":"10.244.9.0/24","Underlay":"10.9.0.1"}`: true, `{"Subnet":"fd00::/64","Underlay":"fd09::1"}`: true,
		`{"Subnet":"10.244.9.1/24","Underlay":"10.9.0.1"}`: false, `{"Subnet":"","Underlay":"10.9.0.1"}`: false,
		`{"Subnet":"10.244.9.0/24","Underlay":""}`: false, `{"Subnet":"10.244.9.0/24","Underlay":"fd09::1"}`: false,
	} {
		for _, text := range []string{`{"Version":1,"Local":{"Stacks":[` + stack + `]}}`, `{"Version":1,"Peers":[{"Stacks":[` + stack + `]}]}`} {
			if _, err := parseCheckpoint([]byte(text)); (err == nil) != good {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
}

// TestEarlierLease: the subnets of subnet.env are the wish of a node without a checkpoint, as of
// one that flannel ran on.
func TestEarlierLease(t *testing.T) {
	a := New(Config{Planner: Planner{Node: "node1"}, Settings: Settings{Checkpoint: filepath.Join(t.TempDir(), "none"), SubnetFile: filepath.Join(t.TempDir(), "subnet.env")}})
	if lease := a.earlierLease(); lease.Node != "node1" || len(lease.Stacks) != 0 {
		t.Errorf("without anything: %+v", lease)
	}
	env := subnet.Env{Networks: prefixes("10.244.0.0/16", "fd00::/48"), Subnets: prefixes("10.244.7.1/24", "fd00::1/64"), MTU: 1450}
	must(t, os.WriteFile(a.Settings.SubnetFile, env.Format(), 0o644))
	lease := a.earlierLease()
	if len(lease.Stacks) != 2 || lease.Stacks[0].Subnet != prefixes("10.244.7.0/24")[0] || lease.Stacks[1].Subnet != prefixes("fd00::/64")[0] {
		t.Errorf("from subnet.env: %+v", lease)
	}
}

// TestCheckpointIsOurs: what another version or another node has written is not taken for a lease
// of this node.
func TestCheckpointIsOurs(t *testing.T) {
	const text = `{"Version":VERSION,"Node":"node9","Network":{},"Local":{"Node":"node9","Backend":"vxlan","Stacks":[{"Subnet":"10.244.9.0/24","Underlay":"10.9.0.1"}]}}`
	if _, err := parseCheckpoint([]byte(strings.Replace(text, "VERSION", "1", 1))); err != nil {
		t.Errorf("version 1: %v", err)
	}
	for _, version := range []string{"0", "2"} {
		if _, err := parseCheckpoint([]byte(strings.Replace(text, "VERSION", version, 1))); err == nil || !strings.Contains(err.Error(), "want 1") {
			t.Errorf("version %s: %v", version, err)
		}
	}
	path := filepath.Join(t.TempDir(), "checkpoint.json")
	must(t, os.WriteFile(path, []byte(strings.Replace(text, "VERSION", "1", 1)), 0o600))
	for node, want := range map[string]int{"node9": 1, "node1": 0} {
		a := New(Config{Planner: Planner{Node: node, Network: subnet.Config{Backend: "vxlan"}}, Settings: Settings{Checkpoint: path, SubnetFile: path + ".env"}})
		a.restoreCheckpoint()
		if lease := a.earlierLease(); len(lease.Stacks) != want || lease.Node != node {
			t.Errorf("%s goes on with %v, want %d stacks", node, lease, want)
		}
		if ok := a.earlierSnapshot() != nil; ok != (want > 0) {
			t.Errorf("%s goes on with the peers of node9: %t", node, ok)
		}
	}
}

// mindful is a store that has something to remember.
type mindful struct {
	subnet.Store
	says  string
	given *string
}

func (m mindful) Checkpoint() json.RawMessage  { return json.RawMessage(m.says) }
func (m mindful) Restore(data json.RawMessage) { *m.given = string(data) }

// TestCheckpointOfTheStore gives a restarted store what it knew, also when the agent cannot lease
// before it writes.
func TestCheckpointOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		given := ""
		n.tune = func(c *Config) { c.Store = mindful{c.Store, `{"known":1}`, &given} }
		stop := n.start()
		n.eventually("a checkpoint", func() bool { _, err := os.Stat(n.checkpoint()); return err == nil && n.ready() })
		stop()
		if given != "" {
			t.Errorf("without a checkpoint the store was given %q", given)
		}
		stop = n.start()
		n.eventually("ready", n.ready)
		stop()
		if given != `{"known":1}` {
			t.Errorf("the store was given %q", given)
		}
	})
}

func FuzzParseCheckpoint(f *testing.F) {
	f.Add([]byte(`{"Version":1,"Node":"a","Network":{},"Local":{"Stacks":[{"Subnet":"10.0.1.0/24","Underlay":"10.9.0.1"}]}}`))
	f.Add([]byte(`{"Version":1,"Local":{"Stacks":[{"Subnet":"10.0.1.3/24","Underlay":"::1"}]}}`))
	f.Add([]byte(`{"Version":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseCheckpoint(data)
		if err != nil {
			return
		}
		for _, lease := range append(c.snapshot().Peers, c.snapshot().Local) {
			for _, s := range lease.Stacks {
				if !s.Subnet.IsValid() || !s.Underlay.IsValid() || s.Underlay.Is4() != s.Subnet.Addr().Is4() {
					t.Errorf("took the stack %+v", s)
				}
			}
		}
	})
}
