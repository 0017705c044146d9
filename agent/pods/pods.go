// Package pods keeps a node's address reservations true to its pods. A runtime that crashed, or that never heard
// of a result, does not send a DEL, containerd never calls GC, and reservations survive a reboot that no pod does:
// without this a node runs out of addresses.
package pods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twill-net/twill/plugin"
)

// Config is what a Reclaimer needs.
type Config struct {
	Store   string        // the network's reservations: /var/lib/cni/networks/cbr0
	Plugins string        // where portmap and bandwidth are, in the form of PATH
	Grace   time.Duration // how long a reservation without a pod is left alone
	Every   time.Duration // between two looks
	Log     *slog.Logger
}

// Reclaimer frees the reservations that no pod has. A pod is known by its veth pair or by one of its addresses
// standing in the network namespace at the other end of any pair: both exist exactly as long as the namespace
// does, whether a runtime or a process is there or not.
type Reclaimer struct {
	Config
	dead map[holder]time.Time // since when a holding has been seen without a pod
}

// holder is who holds something.
type holder struct{ container, dev string }

// New makes a Reclaimer that has not looked yet.
func New(cfg Config) *Reclaimer {
	return &Reclaimer{Config: cfg, dead: map[holder]time.Time{}}
}

// bootMark is the file in the store that names the boot in which reservations were last made true. Its dot keeps
// host-local from taking it for an address.
const bootMark = ".twill-boot"

// Boot frees the reservations of an earlier boot at once. It has to be called before the lease is written: until
// then the plugin refuses every ADD, so nothing without a pod can be an ADD under way.
func (r *Reclaimer) Boot(ctx context.Context) error {
	boot, err := bootID()
	if err != nil {
		return fmt.Errorf("tell this boot from earlier ones: %w", err)
	}
	path := filepath.Join(r.Store, bootMark)
	marked, err := os.ReadFile(path)
	if strings.TrimSpace(string(marked)) == boot || errors.Is(err, os.ErrNotExist) && !r.exists() {
		return nil
	}
	began, err := bootTime()
	if err != nil {
		return fmt.Errorf("tell this boot from earlier ones: %w", err)
	}
	known := len(marked) > 0
	err = r.reclaim(ctx, func(h plugin.Holding) bool { return known || h.Since.Before(began) })
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(boot+"\n"), 0o644)
}

// exists says whether there is a store at all; the first pod makes it.
func (r *Reclaimer) exists() bool {
	_, err := os.Stat(r.Store)
	return err == nil
}

// Run looks every r.Every until ctx is done. Errors are logged and end nothing.
func (r *Reclaimer) Run(ctx context.Context) error {
	ticker := time.NewTicker(r.Every)
	defer ticker.Stop()
	said := ""
	for {
		err := r.Look(ctx)
		switch text := fmt.Sprint(err); {
		case err == nil:
			said = ""
		case text != said:
			said = text
			r.Log.Error("free the addresses of pods that are gone", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Look frees what has had no pod for the whole grace period. The period counts from when this Reclaimer first saw
// it so, and not from the file's date: clocks jump.
func (r *Reclaimer) Look(ctx context.Context) error {
	now, seen := time.Now(), map[holder]bool{}
	err := r.reclaim(ctx, func(h plugin.Holding) bool {
		id := holder{h.Container, h.Dev}
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
	return errors.Join(err, r.mark())
}

// mark notes that the store is of this boot: for a store that was made after Boot, and on nodes where flannel ran.
func (r *Reclaimer) mark() error {
	boot, err := bootID()
	if err != nil || !r.exists() {
		return nil // without a boot id there is nothing to tell apart
	}
	path := filepath.Join(r.Store, bootMark)
	if marked, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(marked)) == boot {
		return nil
	}
	return os.WriteFile(path, []byte(boot+"\n"), 0o644)
}

// reclaim frees those holdings without a pod that due picks. The reservations are read first: a pod that is wired
// in between is then found attached.
func (r *Reclaimer) reclaim(ctx context.Context, due func(plugin.Holding) bool) error {
	holdings, err := plugin.Holdings(r.Store)
	if len(holdings) == 0 {
		return err
	}
	attached, err2 := plugin.AttachedPods()
	if err2 != nil {
		return errors.Join(err, err2)
	}
	errs := []error{err}
	for _, h := range holdings {
		if has(attached, h) || !due(h) || ctx.Err() != nil {
			continue
		}
		errs = append(errs, r.free(ctx, h))
	}
	return errors.Join(errs...)
}

// has says whether a pod still has any of h.
func has(attached plugin.Attached, h plugin.Holding) bool {
	if attached.Ends[h.HostEnd()] {
		return true
	}
	for _, a := range h.Addrs {
		if _, ok := attached.Addrs[a]; ok {
			return true
		}
	}
	return false
}

func (r *Reclaimer) free(ctx context.Context, h plugin.Holding) error {
	if err := h.Remove(ctx, r.Store, r.Plugins); err != nil {
		return err
	}
	r.Log.Info("freed what a pod that is gone had left", "container", h.Container, "dev", h.Dev, "addrs", fmt.Sprint(h.Addrs))
	return nil
}

// Live counts the pods that have an address of a subnet.
func Live(subnet netip.Prefix) (int, error) {
	attached, err := plugin.AttachedPods()
	count := 0
	for a := range attached.Addrs {
		if subnet.Masked().Contains(a) {
			count++
		}
	}
	return count, err
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// bootTime is when the kernel started, by the clock of now.
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
