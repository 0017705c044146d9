package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/twill-net/twill/agent/checksum"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// checksums is what the agent knows of its devices' packets whose checksums are left to the NIC.
type checksums struct {
	applied chan netstate.State // what the kernel was brought to, the newest
	mu      sync.Mutex
	broken  map[string]bool // by device
}

func newChecksums() checksums {
	return checksums{applied: make(chan netstate.State, 1), broken: map[string]bool{}}
}

// facts adds to the node which devices' checksums the NIC breaks: what the probes of this run found, and what an
// earlier run left in the kernel, which outlives the device here.
func (c *checksums) facts(node *backend.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(c.broken, node.ChecksumsBroken)
	if len(c.broken) > 0 {
		node.ChecksumsBroken = maps.Clone(c.broken)
	}
}

// add notes that the NIC breaks the checksums of a device, and reports whether that is new.
func (c *checksums) add(dev string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.broken[dev]
	c.broken[dev] = true
	return !known
}

// vtep is a peer's end of the overlay, and how it is reached: a probe of it says nothing when any of that changes.
type vtep struct {
	link netstate.VXLAN
	to   netip.Addr
	fdb  netstate.FDB
}

// vteps returns the peers that are reached through devices whose checksums are left to the NIC.
func vteps(state netstate.State) map[vtep]bool {
	at := map[netstate.Key]netstate.FDB{}
	for _, o := range state {
		if f, ok := o.(netstate.FDB); ok {
			at[netstate.Key{Name: f.Dev, MAC: f.MAC}] = f
		}
	}
	all := map[vtep]bool{}
	for _, o := range state {
		n, ok := o.(netstate.Neigh)
		link, isVXLAN := state[netstate.Key{Kind: netstate.KindLink, Name: n.Dev}].(netstate.VXLAN)
		if _, said := state[netstate.Offload{Dev: n.Dev}.Key()]; ok && isVXLAN && !said {
			all[vtep{link, n.IP, at[netstate.Key{Name: n.Dev, MAC: n.MAC}]}] = true
		}
	}
	return all
}

// How much is probed: after each change of the peers a few of the new ones for each device, because the NIC is the same
// towards all; and a few others after probeAgain if none of them answered.
const (
	probesPerChange = 3
	probeAgain      = 10 * time.Second
)

// probesChecksums reports whether the agent probes whether checksums arrive.
func (a *Agent) probesChecksums() bool {
	return a.ProbeChecksum != nil && a.Planner.probesChecksums()
}

// probeChecksums probes the peers of each state that the loop has brought the kernel to.
func (a *Agent) probeChecksums(ctx context.Context) error {
	var now, known map[vtep]bool
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case state := <-a.checksums.applied:
			now = vteps(state)
		case <-again:
		}
		again, known = nil, a.probeNew(ctx, now, known)
		if len(known) < len(now) {
			again = time.After(probeAgain)
		}
	}
}

// probeNew probes some of the peers that are not known, in random order, and returns those that need no further probe:
// all, but the unknown ones of a device of which nobody answered.
func (a *Agent) probeNew(ctx context.Context, now, known map[vtep]bool) map[vtep]bool {
	probes, answers := map[string]int{}, map[string]int{}
	for v := range now {
		dev := v.link.Name
		if known[v] || probes[dev] == probesPerChange || ctx.Err() != nil {
			continue
		}
		probes[dev]++
		if a.probeChecksum(ctx, v) != checksum.Unknown {
			answers[dev]++
		}
	}
	done := maps.Clone(now)
	maps.DeleteFunc(done, func(v vtep, _ bool) bool { return !known[v] && answers[v.link.Name] == 0 })
	return done
}

// probeChecksum probes one peer, and reports what is broken.
func (a *Agent) probeChecksum(ctx context.Context, v vtep) checksum.Result {
	result, err := a.ProbeChecksum(ctx, v.to)
	if err != nil && ctx.Err() == nil {
		a.Log.Debug("probe checksums", "node", a.Node, "err", err)
	}
	if dev := v.link.Name; result == checksum.Broken && a.checksums.add(dev) {
		a.Log.Warn("the network card breaks the checksums of encapsulated packets, the kernel computes them from now on",
			"node", a.Node, "device", dev, "underlay", v.link.Dev, "to", v.fdb.Dst)
		a.event("Warning", "ChecksumsBroken", fmt.Sprintf("packets of %s to %s arrive only if %s does not compute their "+
			"checksums: that offload is off from now on", dev, v.fdb.Dst, v.link.Dev))
		a.trigger()
	}
	return result
}
