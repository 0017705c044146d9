package ipam

import (
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Allocation is everything that a store has for one interface of a pod.
type Allocation struct {
	Store Store
	Owner Owner
	Addrs []netip.Addr // none: all there is was left by a killed process
	Since time.Time    // when the newest of it was written
	Named bool         // this plugin reserved all of it, so its pod has the veth end wire.HostEnd(Owner)
}

// Allocations reads the store, which may be missing. What it could read is returned with an error too.
func (s Store) Allocations() ([]Allocation, error) {
	owners := map[Owner]*Allocation{}
	indexed := map[uint64]bool{}
	index := filepath.Join(string(s), indexDir)
	err := Unindexed(readDir(index, func(inode uint64, name string) {
		path := filepath.Join(index, name)
		content, _ := readRegular(path)
		if len(content) == 0 {
			return
		}
		var o Owner
		if isReservation(name) {
			o, indexed[inode] = parseOwner(content), true
		} else if json.Unmarshal(content, &o) != nil { // no record
			return
		}
		allocation(owners, o, path)
	}))
	err = errors.Join(err, s.each(func(addr netip.Addr, o Owner) {
		a, inode := allocation(owners, o, s.file(addr))
		a.Addrs = append(a.Addrs, addr)
		a.Named = a.Named && indexed[inode]
	}))
	all := make([]Allocation, 0, len(owners))
	for o, a := range owners {
		a.Store, a.Owner = s, o
		all = append(all, *a)
	}
	return all, err
}

// allocation returns that of o, to which the file belongs, and the file's inode number.
func allocation(owners map[Owner]*Allocation, o Owner, file string) (*Allocation, uint64) {
	a := owners[o]
	if a == nil {
		a = &Allocation{Named: true}
		owners[o] = a
	}
	var stat unix.Stat_t
	if unix.Lstat(file, &stat) != nil {
		return a, 0
	}
	if written := time.Unix(stat.Mtim.Unix()); written.After(a.Since) {
		a.Since = written
	}
	return a, stat.Ino
}
