package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

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
		Skips: []subnet.Skip{{Node: "node3", Code: subnet.Unreadable, Detail: "no public IP"}},
	}
}

func TestCheckpointRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "checkpoint.json")
	want := someSnapshot()
	c := checkpoint{Version: checkpointVersion, Node: "node1", Network: json.RawMessage(`{"Network":"10.244.0.0/16"}`), Local: save(want.Local)}
	for _, p := range want.Peers {
		c.Peers = append(c.Peers, save(p))
	}
	for _, s := range want.Skips {
		c.Skips = append(c.Skips, savedSkip(s))
	}
	if err := writeCheckpoint(path, c); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, err %v", info.Mode(), err)
	}
	got, err := readCheckpoint(path)
	if err != nil || !reflect.DeepEqual(got.snapshot(), want) {
		t.Errorf("read %+v, err %v", got.snapshot(), err)
	}
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
	if a := CheckpointAddrs(path); !reflect.DeepEqual(a, addrs("192.168.33.101")) {
		t.Errorf("addresses %v", a)
	}
}

// TestCheckpointIsOurs: what another version or another node has written is not taken for a lease of this node.
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
		a := New(Config{Node: node, BackendName: "vxlan", Checkpoint: path, SubnetFile: path + ".env"})
		if lease := a.oldLease(); len(lease.Stacks) != want || lease.Node != node {
			t.Errorf("%s goes on with %v, want %d stacks", node, lease, want)
		}
		if _, ok := a.lastTime(); ok != (want > 0) {
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

// TestCheckpointOfTheStore gives a restarted store what it knew, also when the agent cannot lease before it writes.
func TestCheckpointOfTheStore(t *testing.T) {
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
				if !s.Subnet.IsValid() || !s.Underlay.IsValid() || s.Is4() != s.Subnet.Addr().Is4() {
					t.Errorf("took the stack %+v", s)
				}
			}
		}
	})
}
