// Package drops asks the kernel why it drops packets: an eBPF program at the tracepoint kfree_skb, which is built
// here from instructions, so that neither a compiler nor headers are needed. It wants Linux 5.17 with BTF, and the
// rights to trace (root on the machine, or CAP_BPF and CAP_PERFMON).
package drops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
)

// Drop is one packet that the kernel threw away.
type Drop struct {
	Reason   string // the kernel's word: NETFILTER_DROP
	Function string // of the kernel that did it: nf_hook_slow; empty where addresses are hidden
	Netns    uint32 // inode number of the network namespace; 0 if the packet was on no device
	Dev      string
	Packet   []byte // from its IP header on; zeros follow
}

// Watcher collects drops.
type Watcher struct {
	reasons map[uint32]string
	symbols symbols
	ring    *ebpf.Map
	prog    *ebpf.Program
	link    link.Link
	reader  *ringbuf.Reader
}

// ringSize is the bytes of drops that can wait to be read: about 1,500.
const ringSize = 1 << 18

// Watch begins to collect what is dropped between two addresses of the same family, in either direction, in any
// namespace of this machine, also while it is wrapped.
func Watch(a, b netip.Addr) (*Watcher, error) {
	o, reasons, err := kernelTypes()
	if err != nil {
		return nil, err
	}
	w := &Watcher{reasons: reasons}
	if err := w.attach(o, a, b); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *Watcher) attach(o offsets, a, b netip.Addr) (err error) {
	w.ring, err = ebpf.NewMap(&ebpf.MapSpec{Name: "twill_drops", Type: ebpf.RingBuf, MaxEntries: ringSize})
	if err != nil {
		return because("make an eBPF ring buffer", err)
	}
	w.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "twill_drops", Type: ebpf.RawTracepoint, License: "GPL",
		Instructions: program(o, w.ring.FD(), a, b)})
	if err != nil {
		return because("load an eBPF program", err)
	}
	w.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "kfree_skb", Program: w.prog})
	if err != nil {
		return because("attach to the tracepoint kfree_skb", err)
	}
	if w.reader, err = ringbuf.NewReader(w.ring); err != nil {
		return because("read the eBPF ring buffer", err)
	}
	return nil
}

// because says what would help. The verifier's log is for developers: only its first line is kept.
func because(what string, err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%s: not permitted: want root on the machine itself, or CAP_BPF and CAP_PERFMON", what)
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return fmt.Errorf("%s: %s", what, first)
}

// Close stops collecting.
func (w *Watcher) Close() error {
	var errs []error
	if w.reader != nil {
		errs = append(errs, w.reader.Close())
	}
	if w.link != nil {
		errs = append(errs, w.link.Close())
	}
	if w.prog != nil {
		errs = append(errs, w.prog.Close())
	}
	if w.ring != nil {
		errs = append(errs, w.ring.Close())
	}
	return errors.Join(errs...)
}

// Read returns what was dropped since the last time; it does not wait.
func (w *Watcher) Read() ([]Drop, error) {
	var all []Drop
	w.reader.SetDeadline(time.Now())
	for {
		r, err := w.reader.Read()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return all, nil
		case err != nil:
			return all, fmt.Errorf("read the eBPF ring buffer: %w", err)
		}
		if d, ok := w.decode(r.RawSample); ok {
			all = append(all, d)
		}
	}
}

func (w *Watcher) decode(event []byte) (Drop, bool) {
	if len(event) < eventSize {
		return Drop{}, false
	}
	n := binary.NativeEndian
	reason := n.Uint32(event[atReason:])
	d := Drop{Reason: w.reasons[reason], Netns: n.Uint32(event[atNetns:]), Packet: event[atData:eventSize]}
	if d.Reason == "" {
		d.Reason = fmt.Sprintf("reason %d", reason)
	}
	d.Dev, _, _ = strings.Cut(string(event[atDev:atData]), "\x00")
	d.Function = w.symbols.name(n.Uint64(event[atLocation:]))
	return d, true
}
