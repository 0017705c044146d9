// Package pods frees the address reservations of pods that are gone. A runtime that crashed, or
// that never got a result, does not send a DEL, containerd never calls GC, and reservations survive
// a reboot, which no pod does: without this a node runs out of addresses.
package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/smallfile"
	"github.com/twill-net/twill/plugin"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
	"github.com/twill-net/twill/subnet"
)

// Config is what a Reclaimer needs.
type Config struct {
	Store   string                // the network's reservations: /var/lib/cni/networks/cbr0
	Bridge  string                // which pods are on: cni0
	Plugins string                // where portmap and bandwidth are, in the form of PATH
	Lease   func() []netip.Prefix // this node's subnets now
	Grace   time.Duration         // how long a reservation without a pod is left alone
	Every   time.Duration         // between two checks
	Log     *slog.Logger
	// Event tells the cluster what happened, and Metrics are about addresses. Both are optional.
	Event   func(kind, reason, message string)
	Metrics *Metrics
}

// Reclaimer frees the reservations that no pod has. It recognizes a pod by its veth pair, which
// exists exactly as long as its network namespace, with or without a runtime or a process. If
// flannel's chain of plugins made the pair, it has a random name, and the pod is recognized by one
// of its addresses in that namespace. As long as the addresses of any namespace are unknown (gVisor
// removes them from the interface), nothing of that chain's is freed.
type Reclaimer struct {
	Config
	dead map[allocationID]time.Time // when an allocation was first seen without a pod
	kept string                     // what was last logged about allocations that are kept
	odd  string                     // and about what is no reservation
	full string                     // and about addresses that are all in use
}

// allocationID identifies an allocation.
type allocationID struct {
	store ipam.Store
	owner ipam.Owner
}

// New makes a Reclaimer.
func New(cfg Config) *Reclaimer {
	return &Reclaimer{Config: cfg, dead: map[allocationID]time.Time{}}
}

// bootMark is the file in the store that names the boot in which reservations were last checked.
// Because of its dot, host-local does not take it for an address.
const bootMark = ".twill-boot"

// Boot frees the reservations of an earlier boot at once. It must be called before the lease is
// written: until then the plugin refuses every ADD, so that a reservation without a pod cannot be
// an ADD in progress.
func (r *Reclaimer) Boot(ctx context.Context) error {
	boot := subnet.BootID()
	if boot == "" {
		return errors.New("distinguish this boot from earlier ones: the kernel has no boot ID")
	}
	path := filepath.Join(r.Store, bootMark)
	marked, _ := smallfile.ReadUnlinked(path, smallfile.MB) // without one it is another boot's
	if strings.TrimSpace(string(marked)) == boot || !r.exists() {
		return nil
	}
	began, err := bootTime()
	if err != nil {
		return fmt.Errorf("distinguish this boot from earlier ones: %w", err)
	}
	known := len(marked) > 0
	err = r.reclaim(ctx, func(h ipam.Allocation) bool { return known || h.Since.Before(began) })
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(boot+"\n"), 0o644)
}

// exists reports whether there is a store. The first pod makes it.
func (r *Reclaimer) exists() bool {
	_, err := os.Stat(r.Store)
	return err == nil
}

// Run checks every r.Every until ctx is done. It logs errors and continues.
func (r *Reclaimer) Run(ctx context.Context) error {
	ticker := time.NewTicker(r.Every)
	defer ticker.Stop()
	logged := ""
	for {
		err := r.Check(ctx)
		switch text := fmt.Sprint(err); {
		case err == nil:
			logged = ""
		case text != logged:
			logged = text
			r.Log.Error("free the addresses of pods that are gone", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Check frees what has had no pod for the whole grace period. The period begins when this Reclaimer
// first saw it so, not with the file's date: clocks jump.
func (r *Reclaimer) Check(ctx context.Context) error {
	now, seen := time.Now(), map[allocationID]bool{}
	err := r.reclaim(ctx, func(h ipam.Allocation) bool {
		id := allocationID{h.Store, h.Owner}
		seen[id] = true
		since, known := r.dead[id]
		if !known {
			r.dead[id], since = now, now
		}
		return now.Sub(since) >= r.Grace
	})
	for id := range r.dead {
		if !seen[id] {
			delete(r.dead, id)
		}
	}
	return errors.Join(err, r.reportUsage(), r.mark())
}

// mark writes this boot's mark, for a store that was made after Boot.
func (r *Reclaimer) mark() error {
	boot := subnet.BootID()
	if boot == "" || !r.exists() {
		return nil // without a boot ID there is nothing to distinguish
	}
	path := filepath.Join(r.Store, bootMark)
	if marked, err := smallfile.ReadUnlinked(path, smallfile.MB); err == nil && strings.TrimSpace(string(marked)) == boot {
		return nil
	}
	return os.WriteFile(path, []byte(boot+"\n"), 0o644)
}

// readAllocations reads the reservations of the store and of those beside it: flannel's chain reserves
// under the name in flannel's conflist.
func readAllocations(store string) ([]ipam.Allocation, error) {
	all, err := ipam.Store(store).Allocations()
	for _, dir := range ipam.Store(store).Neighbours() {
		more, err2 := dir.Allocations()
		all, err = append(all, more...), errors.Join(err, err2)
	}
	return all, err
}

// ours reports whether h belongs to this network: it is in the network's own store, or all its
// addresses are of this node's lease.
func (r *Reclaimer) ours(h ipam.Allocation, lease []netip.Prefix) bool {
	outside := func(a netip.Addr) bool {
		return !slices.ContainsFunc(lease, func(p netip.Prefix) bool { return p.Masked().Contains(a) })
	}
	return string(h.Store) == r.Store || len(h.Addrs) > 0 && !slices.ContainsFunc(h.Addrs, outside)
}

// reclaim frees the allocations without a pod that are due. It reads the reservations first, so that a
// pod that is added meanwhile is found attached.
func (r *Reclaimer) reclaim(ctx context.Context, due func(ipam.Allocation) bool) error {
	r.reportStrangers()
	allocations, err := readAllocations(r.Store)
	if len(allocations) == 0 {
		return err
	}
	attached, err2 := wire.AttachedPods()
	if err2 != nil {
		return errors.Join(err, err2)
	}
	remover, lease := &plugin.Remover{Path: r.Plugins}, r.Lease()
	errs, kept, unknown := []error{err}, 0, attached.Unknown(r.Bridge, allocations)
	for _, h := range allocations {
		switch {
		case !r.ours(h, lease) || attached.Has(h) || !due(h) || ctx.Err() != nil:
		case attached.MayHave(h, unknown):
			kept++
		default:
			errs = append(errs, r.free(ctx, remover, h))
		}
	}
	r.reportKept(kept, unknown)
	return errors.Join(errs...)
}

// reportStrangers logs what is named after an address and is no reservation, once.
func (r *Reclaimer) reportStrangers() {
	paths := ipam.Store(r.Store).Strangers()
	if text := strings.Join(paths, " "); text != r.odd {
		r.odd = text
		if len(paths) > 0 {
			r.Log.Warn("these are no files that can be read, and no pod gets their addresses: remove them", "paths", paths)
		}
	}
}

// reportKept logs why reservations are kept, once.
func (r *Reclaimer) reportKept(kept int, unknown []string) {
	text := ""
	if kept > 0 {
		text = fmt.Sprint(kept, unknown)
	}
	if text != "" && text != r.kept {
		r.Log.Info("reservations of flannel's without a pod are kept: pods are there whose addresses nobody knows",
			"count", kept, "ends", unknown)
	}
	r.kept = text
}

func (r *Reclaimer) free(ctx context.Context, remover *plugin.Remover, h ipam.Allocation) error {
	if err := remover.Remove(ctx, h); err != nil {
		return err
	}
	r.Log.Info("freed what a pod that is gone had left",
		"container", h.Owner.Container, "dev", h.Owner.Dev, "addrs", fmt.Sprint(h.Addrs))
	return nil
}

// Live returns a function that counts the pods that have, or may have, an address of a subnet.
// store and bridge are as in Config; without a store only the addresses in pods' namespaces count.
func Live(store, bridge string) func(netip.Prefix) (int, error) {
	return func(subnet netip.Prefix) (int, error) {
		var allocations []ipam.Allocation
		var err error
		if store != "" {
			allocations, err = readAllocations(store)
		}
		attached, err2 := wire.AttachedPods()
		live, unknown := map[netip.Addr]bool{}, attached.Unknown(bridge, allocations)
		for a := range attached.Addrs {
			live[a] = true
		}
		for _, h := range allocations {
			for _, a := range h.Addrs {
				live[a] = live[a] || attached.Ends[wire.HostEnd(h.Owner)] ||
					!attached.Has(h) && attached.MayHave(h, unknown)
			}
		}
		maps.DeleteFunc(live, func(a netip.Addr, there bool) bool { return !there || !subnet.Masked().Contains(a) })
		return len(live), errors.Join(err, err2)
	}
}

// bootTime returns when the kernel started, by the current clock.
func bootTime() (time.Time, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(data)) {
		var seconds int64
		if n, _ := fmt.Sscanf(line, "btime %d", &seconds); n == 1 {
			return time.Unix(seconds, 0), nil
		}
	}
	return time.Time{}, errors.New("/proc/stat has no line btime: want a Linux kernel's")
}
