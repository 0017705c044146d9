package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Holding is everything that the store of one network holds for one interface of a pod.
type Holding struct {
	Dir            string // the store
	Container, Dev string
	Addrs          []netip.Addr // none: all there is was left by a killed process
	Since          time.Time    // when the newest of it was written
	Named          bool         // this plugin reserved all of it, so its pod has the veth end HostEnd
}

// Holdings reads the store at dir, which is host-local's data directory joined with the network's name. It may be
// missing. What it could read is returned with an error too.
func Holdings(dir string) ([]Holding, error) {
	h := holdings{}
	s := &store{dir: dir}
	index := filepath.Join(dir, indexDir)
	indexed := map[uint64]bool{}
	err := entries(index, func(inode uint64, name string) {
		path := filepath.Join(index, name)
		content, err := os.ReadFile(path)
		if err != nil || name == "." || name == ".." {
			return
		}
		if isIndexName(name) {
			indexed[inode] = true
		} else if content, err = recordOwner(content); err != nil {
			return
		}
		if len(content) > 0 {
			h.of(parseOwner(content), path)
		}
	})
	err = errors.Join(err, s.each(func(a netip.Addr, content []byte) {
		if len(content) == 0 { // an empty file is free
			return
		}
		one, inode := h.of(parseOwner(content), s.path(a))
		one.Addrs = append(one.Addrs, a)
		one.Named = one.Named && indexed[inode]
	}))
	all := make([]Holding, 0, len(h))
	for _, one := range h {
		one.Dir = dir
		all = append(all, *one)
	}
	return all, err
}

// recordOwner returns the owner in a record of addons, in the form of a reservation.
func recordOwner(content []byte) ([]byte, error) {
	var r record
	err := json.Unmarshal(content, &r)
	return []byte(owner{r.Container, r.Dev}.String()), err
}

// holdings is them by owner.
type holdings map[owner]*Holding

// of returns the holding of o, to which the file belongs, and the file's inode number.
func (h holdings) of(o owner, file string) (*Holding, uint64) {
	one := h[o]
	if one == nil {
		one = &Holding{Container: o.container, Dev: o.dev, Named: true}
		h[o] = one
	}
	var stat unix.Stat_t
	if unix.Lstat(file, &stat) != nil {
		return one, 0
	}
	if written := time.Unix(stat.Mtim.Unix()); written.After(one.Since) {
		one.Since = written
	}
	return one, stat.Ino
}

// HostEnd is the name of the host's end of the veth pair, if this plugin made it: while it exists, so does the
// pod's network namespace.
func (h Holding) HostEnd() string { return hostName(owner{h.Container, h.Dev}) }

// Remover takes away what pods that are gone left. It is made for one round over the holdings.
type Remover struct {
	Path string // where portmap and bandwidth are, in the form of PATH

	ports map[netip.Addr]bool // that rules lead to; nil: not looked yet
}

// Remove takes all of a holding away as DEL does: the veth pair, what portmap and bandwidth did, and the reservations
// that are still this owner's. An address is not given back while any rule leads a port of the node to it.
func (r *Remover) Remove(ctx context.Context, h Holding) error {
	o := owner{h.Container, h.Dev}
	file := (&store{dir: h.Dir}).recordPath(o)
	err := deleteVeth(hostName(o))
	if err == nil {
		err = dropAddons(ctx, file, caller{owner: o, path: r.Path}, nil)
	}
	if err == nil {
		err = r.dropPorts(ctx, file, h.Addrs)
	}
	if err == nil {
		err = releaseAll(ctx, h.Dir, o, h.Addrs)
	}
	if err != nil {
		return fmt.Errorf("remove what %s left in %s: %w", strings.TrimSpace(h.Container+" "+h.Dev), h.Dir, err)
	}
	return nil
}

// dropPorts removes the rules that portmap's DEL did not find. file is the owner's record.
func (r *Remover) dropPorts(ctx context.Context, file string, addrs []netip.Addr) error {
	var err error
	if r.ports == nil {
		if r.ports, err = leftPorts(ctx); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return r.ports[a] }) {
		return nil
	}
	turn, err := oneAtATime(ctx, file)
	if err != nil {
		return err
	}
	defer turn.Close()
	if err := removePorts(ctx, addrs); err != nil {
		return err
	}
	left, err := leftPorts(ctx)
	for _, a := range addrs {
		if left[a] {
			err = errors.Join(err, fmt.Errorf("rules still lead host ports to %s", a))
		}
	}
	return err
}
