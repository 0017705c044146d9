// Package drops asks the kernel why it drops packets: with an eBPF program at the tracepoint kfree_skb, which is
// assembled here, so that neither a compiler nor headers are needed. It needs Linux 5.17 with BTF, and the rights to
// trace (root on the machine, or CAP_BPF and CAP_PERFMON).
package drops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// Drop is one packet that the kernel dropped.
type Drop struct {
	Reason   string // a name of enum skb_drop_reason: NETFILTER_DROP
	Function string // of the kernel that dropped it: nf_hook_slow; empty if addresses are hidden
	Netns    uint32 // inode number of the network namespace; 0 if the packet was on no device
	Host     string // the namespace's name, which who watches knows; empty: it is not watched
	Dev      string
	Time     time.Time
	Packet   []byte // from its IP header on; zeros follow
}

// ofWatching are the reasons of drops that packet sockets cause.
var ofWatching = []string{"PACKET_SOCK_ERROR", "QUEUE_PURGE", "SOCKET_FILTER"}

// OfWatching reports whether watching packets itself caused the drop.
func (d Drop) OfWatching() bool { return slices.Contains(ofWatching, d.Reason) }

// Watcher collects drops.
type Watcher struct {
	reasons map[uint32]string
	symbols func() []symbol
	reader  *ringbuf.Reader
	closers []io.Closer // in the order in which they were opened
}

// ringSize is the size in bytes of the drops that wait to be read: about 1,500.
const ringSize = 1 << 18

// Watch collects what is dropped between two addresses of the same family, in either direction, in all namespaces of
// this machine, encapsulated or not.
func Watch(a, b netip.Addr) (*Watcher, error) { return watch(filter{a: a, b: b}, ringSize) }

// Namespace returns the inode number of the calling thread's network namespace, by which the kernel knows it too.
func Namespace() (uint32, error) {
	info, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return 0, err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("the namespace has no inode number")
	}
	return uint32(s.Ino), nil
}

// WatchNamespaces collects all that is dropped in network namespaces, which are known by their inode numbers.
func WatchNamespaces(inodes []uint32) (*Watcher, error) {
	return watch(filter{namespaces: inodes}, 16*ringSize)
}

func watch(f filter, size uint32) (*Watcher, error) {
	o, reasons, err := kernelTypes()
	if err != nil {
		return nil, err
	}
	w := &Watcher{reasons: reasons, symbols: sync.OnceValue(readSymbols)}
	if err := w.attach(o, f, size); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *Watcher) attach(o offsets, f filter, size uint32) error {
	ring, err := ebpf.NewMap(&ebpf.MapSpec{Name: "twill_drops", Type: ebpf.RingBuf, MaxEntries: size})
	if err != nil {
		return explain("create an eBPF ring buffer", err)
	}
	w.closers = append(w.closers, ring)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "twill_drops", Type: ebpf.RawTracepoint, License: "GPL",
		Instructions: program(o, ring.FD(), f)})
	if err != nil {
		return explain("load an eBPF program", err)
	}
	w.closers = append(w.closers, prog)
	attached, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "kfree_skb", Program: prog})
	if err != nil {
		return explain("attach to the tracepoint kfree_skb", err)
	}
	w.closers = append(w.closers, attached)
	if w.reader, err = ringbuf.NewReader(ring); err != nil {
		return explain("read the eBPF ring buffer", err)
	}
	w.closers = append(w.closers, w.reader)
	return nil
}

// explain adds what would help. The verifier's log is for developers: only its first line is kept.
func explain(what string, err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%s: not permitted: want root on the machine itself, or CAP_BPF and CAP_PERFMON", what)
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return fmt.Errorf("%s: %s", what, first)
}

// Close stops collecting.
func (w *Watcher) Close() error {
	var errs []error
	for _, c := range slices.Backward(w.closers) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// maxRead is how many drops one Read takes: they may come faster than they are read.
const maxRead = 1 << 15

// Read returns what was dropped since the last call, at most maxRead of it. It does not block.
func (w *Watcher) Read() ([]Drop, error) {
	var all []Drop
	w.reader.SetDeadline(time.Now())
	booted, err := bootTime()
	if err != nil {
		return nil, err
	}
	for range maxRead {
		r, err := w.reader.Read()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return all, nil
		case err != nil:
			return all, fmt.Errorf("read the eBPF ring buffer: %w", err)
		}
		if d, ok := w.decode(r.RawSample, booted); ok {
			all = append(all, d)
		}
	}
	return all, nil
}

func (w *Watcher) decode(event []byte, booted time.Time) (Drop, bool) {
	if len(event) < eventSize {
		return Drop{}, false
	}
	n := binary.NativeEndian
	reason := n.Uint32(event[atReason:])
	d := Drop{Reason: w.reasons[reason], Netns: n.Uint32(event[atNetns:]), Packet: event[atData:eventSize],
		Time: booted.Add(time.Duration(n.Uint64(event[atTime:])))}
	if d.Reason == "" {
		d.Reason = fmt.Sprintf("reason %d", reason)
	}
	d.Dev, _, _ = strings.Cut(string(event[atDev:atData]), "\x00")
	d.Function = functionAt(w.symbols(), n.Uint64(event[atLocation:]))
	return d, true
}

// bootTime returns when CLOCK_MONOTONIC was zero, by the clock that packets' times are of.
func bootTime() (time.Time, error) {
	var monotonic unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic); err != nil {
		return time.Time{}, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return time.Now().Round(0).Add(-time.Duration(monotonic.Nano())), nil
}
