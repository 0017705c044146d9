package fastpath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// qdiscPins is the folder that remembers which devices have a qdisc of ours, by index. A BPF file system has no files but
// pins; it has folders.
const qdiscPins = "qdiscs"

func qdiscPin(folder string, index uint32) string {
	return filepath.Join(folder, qdiscPins, strconv.FormatUint(uint64(index), 10))
}

// addQdisc gives a device the qdisc clsact.
func (p *Provider) addQdisc(index uint32) error {
	pin := qdiscPin(p.folder, index)
	if err := os.MkdirAll(pin, 0o700); err != nil {
		return fmt.Errorf("remember a queueing discipline: %w", err)
	}
	if err := p.nl.QdiscAdd(clsact(index)); err != nil {
		_ = os.Remove(pin) // the first error is the one to tell
		return fmt.Errorf("add the queueing discipline clsact: %w", err)
	}
	return nil
}

// removeQdiscs takes our programs from all devices, and the qdiscs that addQdisc made where nobody else uses them.
func (s sockets) removeQdiscs(folder string) error {
	kinds, err := s.qdiscs()
	if err != nil {
		return err
	}
	for index, kind := range kinds {
		if kind != "clsact" {
			continue
		}
		f, err := s.filters(index, parents...)
		if err == nil {
			err = s.deleteFilters(f.ours)
		}
		_, notOurs := os.Stat(qdiscPin(folder, index))
		if err == nil && len(f.other) == 0 && notOurs == nil {
			err = s.nl.QdiscDel(clsact(index))
			_ = os.Remove(qdiscPin(folder, index)) // Clean would
		}
		if err != nil && !absent(err) {
			return fmt.Errorf("remove the fast path from device %d: %w", index, err)
		}
	}
	return nil
}

// absent reports whether what was to be deleted is not there, alone or with its device.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV)
}
