package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/procfs"
	"github.com/twill-net/twill/netstate/rtnl"
)

// pollInterval is how often the sysctls of the last Observe and the providers are read: the kernel announces
// forwarding and rp_filter (RTM_NEWNETCONF), but neither the other sysctls nor what WireGuard and IPsec do.
// A reading that takes longer than a hundredth of it makes the next ones rarer, up to five times: on a busy machine it
// takes long, and costs no more.
const pollInterval, pollShare, pollRarer = 3 * time.Second, 100, 5

// watchBuffer is the receive buffer of the subscription in bytes; when a burst overflows it, the subscription
// ends and the caller looks at everything again.
const watchBuffer = 4 << 20

// Watch sends a hint whenever something of ours, or an interface that could carry us, may have changed. Hints
// carry nothing and are coalesced. The channel is closed when ctx is done or the subscription broke (a burst
// overflowed its buffer): subscribe again and observe everything.
func (k *Kernel) Watch(ctx context.Context) (<-chan struct{}, error) {
	return k.watch(ctx, watchBuffer)
}

func (k *Kernel) watch(ctx context.Context, buffer int) (<-chan struct{}, error) {
	conn, err := k.subscribe(buffer)
	if err != nil {
		return nil, fmt.Errorf("subscribe to kernel changes: %w", err)
	}
	hints, netconf, pods := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	ports := portWatch{map[int]netstate.Port{}, map[int]bool{}, map[int]bool{}, pods}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return k.receive(ctx, conn, ports, hints, netconf) })
	group.Go(func() error { return k.poll(ctx, hints, netconf) })
	group.Go(func() error { return gatherPods(ctx, pods, hints) })
	group.Go(func() error { <-ctx.Done(); return conn.Close() })
	go func() {
		_ = group.Wait() // how it ended does not matter: the closed channel says "look at everything"
		close(hints)
	}()
	return hints, nil
}

func (k *Kernel) subscribe(buffer int) (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, err
	}
	program, err := exceptFrom(k.bulk.Port())
	err = errors.Join(err, conn.SetReadBuffer(buffer), conn.SetBPF(program))
	for _, group := range []uint32{
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
	} {
		err = errors.Join(err, conn.JoinGroup(group))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// exceptFrom returns a filter that drops what a socket's own requests caused: Apply's thousands of changes are no
// news, and are looked at by who called it. The requester's port stands in nlmsg_pid, the last of the header's
// fields.
func exceptFrom(port uint32) ([]bpf.RawInstruction, error) {
	return bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: unix.SizeofNlMsghdr - 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, SkipFalse: 1, // the filter loads in network order
			Val: binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: math.MaxUint32},
	})
}

// gather is how long messages are left to come together. A pod causes dozens, and to be woken costs more than to
// read one.
const gather = 20 * time.Millisecond

// receive hints when a message concerns us. The first one after a silence is read at once. A port that is not as the
// plugin made it may be about to go with its pod, so the messages that come with that are waited for.
func (k *Kernel) receive(
	ctx context.Context, conn *netlink.Conn, ports portWatch, hints, netconf chan<- struct{},
) error {
	raw, _ := conn.SyscallConn() // it has no errors: reading from a closed one has
	buffer := make([]byte, messageBuffer)
	for ctx.Err() == nil {
		var failed error
		read := func(wait bool) error {
			err := raw.Read(func(fd uintptr) (got bool) {
				got, failed = k.drain(int(fd), buffer, ports, hints, netconf)
				return got || failed != nil || !wait
			})
			return errors.Join(err, failed)
		}
		if err := read(true); err != nil {
			return err
		}
		loop.Sleep(ctx, gather)
		if len(ports.altered) > 0 {
			if err := read(false); err != nil {
				return err
			}
			if len(ports.altered) > 0 {
				clear(ports.altered)
				loop.Notify(hints)
			}
		}
	}
	return nil
}

// podDelay is how long a pod that comes or goes may wait for the fast path, so that many are one hint: the node's limits
// of its packets stand by then, too.
const podDelay = time.Second

// gatherPods hints when podDelay has passed since a pod came or went.
func gatherPods(ctx context.Context, pods <-chan struct{}, hints chan<- struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pods:
		}
		if !loop.Sleep(ctx, podDelay) {
			return nil
		}
		select {
		case <-pods: // what came meanwhile is in the same hint
		default:
		}
		loop.Notify(hints)
	}
}

// messageBuffer is more than the kernel puts into one datagram.
const messageBuffer = 64 << 10

// drain reads what is there, and reports whether there was anything.
func (k *Kernel) drain(
	fd int, buffer []byte, ports portWatch, hints, netconf chan<- struct{},
) (got bool, err error) {
	for {
		n, err := unix.Read(fd, buffer)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return got, nil
		case err != nil:
			return got, err // ENOBUFS: messages were lost
		}
		got = true
		for h, data := range rtnl.Messages(buffer[:n]) {
			ports.note(k.filter.Load(), h.Type, data)
			switch {
			case h.Type == unix.RTM_NEWNETCONF && k.concernsNetconf(data):
				loop.Notify(netconf)
			case k.concerns(h.Type, data):
				loop.Notify(hints)
			}
		}
	}
}

// poll hints when one of the observed sysctls, or something of a provider's, is not what it was. It looks again when a
// message says that a sysctl changed.
func (k *Kernel) poll(ctx context.Context, hints chan<- struct{}, netconf <-chan struct{}) error {
	timer := time.NewTimer(procfs.UntilNext(k.interval))
	defer timer.Stop()
	last := k.pollState()
	lastBeside := k.pollBeside()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-netconf:
		case <-timer.C:
		}
		began := time.Now()
		now, beside := k.pollState(), k.pollBeside()
		if !maps.Equal(now, last) || !maps.Equal(beside, lastBeside) {
			last, lastBeside = now, beside
			loop.Notify(hints)
		}
		timer.Reset(k.pause(time.Since(began)))
	}
}

// pause returns how long after a reading that took so long the next one begins.
func (k *Kernel) pause(took time.Duration) time.Duration {
	return max(procfs.UntilNext(k.interval), min(pollShare*took, pollRarer*k.interval))
}

// pollBeside reads what somebody else has at the pods' ports of the last Observe. What cannot be read is Interfaces' to report.
func (k *Kernel) pollBeside() map[string]string {
	var ports []string
	for _, p := range k.filter.Load().marks {
		ports = append(ports, p.Name)
	}
	all, _ := k.beside(ports)
	return all
}

// pollState reads what the kernel does not announce whole. What cannot be read is Observe's to report.
func (k *Kernel) pollState() netstate.State {
	f, state := k.filter.Load(), netstate.State{}
	_ = observeSysctls(f.sysctls, state)
	for _, p := range k.providers {
		if more, err := p.Observe(f.devs, nil); err == nil {
			state.Merge(more)
		}
	}
	return state
}
