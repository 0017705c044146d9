package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/smallfile"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// checkpoint is the file that lets an agent start while the store does not answer: the lease and the peers as
// they were, and the net-conf.json that they belong to.
type checkpoint struct {
	Version int
	Node    string
	Network json.RawMessage   // net-conf.json
	Kept    []json.RawMessage `json:",omitempty"` // see subnet.Config
	Local   subnet.Lease
	Peers   []subnet.Lease
	Skips   []savedSkip  `json:",omitempty"` // peers' records that could not be read
	Claims  []savedClaim `json:",omitempty"` // who was seen first with what several nodes publish

	Store    json.RawMessage `json:",omitempty"` // of a subnet.Checkpointer
	Settings *Settings       `json:",omitempty"` // of the agent that wrote it; nil: an older one wrote it
}

// savedSkip is a subnet.Skip in the file.
type savedSkip struct {
	Node   string
	Code   subnet.Code
	Detail string `json:"Reason"`
}

// savedClaim is one of a snapshot's Claims in the file.
type savedClaim struct {
	subnet.Claim
	Order int
}

// mostCheckpoint bounds what is read of a checkpoint, in bytes: 10,000 peers have 4 MB.
const mostCheckpoint = 64 * smallfile.MB

const checkpointVersion = 1

func (c checkpoint) snapshot() subnet.Snapshot {
	local := subnet.Lease{Node: c.Node, Backend: c.Local.Backend, Stacks: c.Local.Stacks}
	snap := subnet.Snapshot{Local: local, Peers: c.Peers}
	for _, s := range c.Skips {
		snap.Skips = append(snap.Skips, subnet.Skip(s))
	}
	if len(c.Claims) > 0 {
		snap.Claims = make(map[subnet.Claim]int, len(c.Claims))
	}
	for _, s := range c.Claims {
		snap.Claims[s.Claim] = s.Order
	}
	return snap
}

// parseCheckpoint reads a checkpoint file. Leases in it that could not have come from a store are an error: a
// damaged file is worse than none.
func parseCheckpoint(data []byte) (checkpoint, error) {
	var c checkpoint
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("read the checkpoint: %w", err)
	}
	if c.Version != checkpointVersion {
		return c, fmt.Errorf("read the checkpoint: version %d, want %d", c.Version, checkpointVersion)
	}
	for _, lease := range append([]subnet.Lease{c.Local}, c.Peers...) {
		for _, s := range lease.Stacks {
			if !s.Subnet.IsValid() || s.Subnet != s.Subnet.Masked() || !s.Underlay.IsValid() ||
				netstate.FamilyOf(s.Underlay) != netstate.FamilyOf(s.Subnet.Addr()) {
				return c, fmt.Errorf("read the checkpoint: node %q has the subnet %s at %s, which is no lease",
					lease.Node, s.Subnet, s.Underlay)
			}
		}
	}
	return c, nil
}

func readCheckpoint(path string) (checkpoint, error) {
	data, err := smallfile.ReadUnlinked(path, mostCheckpoint)
	if err != nil {
		return checkpoint{}, err
	}
	return parseCheckpoint(data)
}

// Saved is what a checkpoint file holds.
type Saved struct {
	Node     string
	Network  []byte // net-conf.json
	Kept     []json.RawMessage
	Snapshot subnet.Snapshot
	Settings *Settings // of the agent that wrote it; nil: an older one wrote it
}

// ReadCheckpoint reads the checkpoint at path; the error is fs.ErrNotExist when there is none.
func ReadCheckpoint(path string) (Saved, error) {
	c, err := readCheckpoint(path)
	if err != nil {
		return Saved{}, err
	}
	return Saved{c.Node, c.Network, c.Kept, c.snapshot(), c.Settings}, nil
}

// Underlays returns where the checkpoint says that peers reach this node.
func (s Saved) Underlays() (addrs []netip.Addr) {
	for _, stack := range s.Snapshot.Local.Stacks {
		addrs = append(addrs, stack.Underlay)
	}
	return addrs
}

// How often the file is written while leases come and go is bounded: after saveInterval at the
// earliest, and with thousands of peers in proportion to them.
const saveInterval, savePausePerPeer = time.Second, 500 * time.Microsecond

// writeCheckpoints writes the file, beside the loop: thousands of peers, or a slow disk, take
// longer than a repair. It ends after the loop, with what came last.
func (a *Agent) writeCheckpoints(ctx context.Context) error {
	var last *subnet.Snapshot
	var freeOnce sync.Once
	for snap := range a.saves {
		last = a.saveCheckpoint(last, snap)
		loop.Sleep(ctx, max(saveInterval, time.Duration(len(snap.Peers))*savePausePerPeer))
		// A start among thousands of peers makes three times what it keeps, and the first checkpoint is its last step.
		freeOnce.Do(debug.FreeOSMemory)
	}
	return nil
}

// saveCheckpoint writes the file when the leases are not those that were written last, and returns
// what is written now. A file that cannot be written is logged only: the network works without it.
func (a *Agent) saveCheckpoint(last *subnet.Snapshot, snap subnet.Snapshot) *subnet.Snapshot {
	if a.Settings.Checkpoint == "" || last != nil && sameLeases(*last, snap) {
		return last
	}
	if err := os.MkdirAll(filepath.Dir(a.Settings.Checkpoint), 0o755); err != nil {
		a.causes.Error(a.Log, "make the directory of the checkpoint", err)
		return last
	}
	content := func() ([]byte, error) { return json.Marshal(a.checkpointOf(snap)) }
	if a.files.Write(a.Settings.Checkpoint, 0o600, content) != nil { // readable by root alone
		return last
	}
	return &snap
}

func (a *Agent) checkpointOf(snap subnet.Snapshot) checkpoint {
	c := checkpoint{Version: checkpointVersion, Node: a.Node, Network: a.Network.Raw, Local: snap.Local,
		Peers: snap.Peers, Settings: &a.Settings}
	for _, s := range snap.Skips {
		c.Skips = append(c.Skips, savedSkip(s))
	}
	if t, ok := a.Backend.(backend.Transition); ok {
		c.Kept = t.Kept(snap.Local)
	}
	for claim, order := range snap.Claims {
		c.Claims = append(c.Claims, savedClaim{claim, order})
	}
	if store, ok := a.Store.(subnet.Checkpointer); ok {
		c.Store = store.Checkpoint()
	}
	return c
}

// restoreCheckpoint reads what an earlier run left.
func (a *Agent) restoreCheckpoint() {
	c, err := readCheckpoint(a.Settings.Checkpoint)
	if err != nil {
		return
	}
	saved := Saved{c.Node, c.Network, c.Kept, c.snapshot(), c.Settings}
	a.earlier.Store(&saved)
	a.loop.published = saved.Underlays()
	if snap := a.earlierSnapshot(); snap != nil {
		a.leases.peers.remember(*snap)
	}
	if store, ok := a.Store.(subnet.Checkpointer); ok && len(c.Store) > 0 {
		store.Restore(c.Store)
	}
}

// earlierSnapshot returns the snapshot of an earlier run, nil if there is none for this node and
// backend, or the store is in sync.
func (a *Agent) earlierSnapshot() *subnet.Snapshot {
	earlier := a.earlier.Load()
	if earlier == nil || earlier.Node != a.Node || !a.offers(earlier.Snapshot.Local) {
		return nil
	}
	return &earlier.Snapshot
}

// offers reports whether this node's backend has the way that a lease publishes.
func (a *Agent) offers(lease subnet.Lease) bool {
	t, ok := a.Backend.(backend.Transition)
	return lease.Backend == a.Network.Backend || ok && len(t.Kept(lease)) > 0
}

func sameLeases(a, b subnet.Snapshot) bool {
	if !a.Local.Equal(b.Local) || len(a.Peers) != len(b.Peers) || !slices.Equal(a.Skips, b.Skips) ||
		!maps.Equal(a.Claims, b.Claims) {
		return false
	}
	return len(a.Peers) == 0 || &a.Peers[0] == &b.Peers[0] || slices.EqualFunc(a.Peers, b.Peers, subnet.Lease.Equal)
}
