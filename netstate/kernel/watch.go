package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// pollEvery is how often the sysctls of the last Observe and the parts are read: the kernel sends no message about them. A
// reading that takes longer than a hundredth of it makes the next ones rarer.
const pollEvery, pollShare = 250 * time.Millisecond, 100

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
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: groups(
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)})
	if err != nil {
		return nil, fmt.Errorf("subscribe to kernel changes: %w", err)
	}
	if err := conn.SetReadBuffer(buffer); err != nil {
		conn.Close()
		return nil, fmt.Errorf("set the subscription's buffer: %w", err)
	}
	if err := conn.SetBPF(exceptFrom(k.bulk.port)); err != nil {
		conn.Close()
		return nil, fmt.Errorf("filter the subscription: %w", err)
	}
	hints := make(chan struct{}, 1)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return k.receive(ctx, conn, hints) })
	group.Go(func() error { return k.poll(ctx, hints) })
	group.Go(func() error { <-ctx.Done(); return conn.Close() })
	go func() {
		_ = group.Wait() // how it ended does not matter: the closed channel says "look at everything"
		close(hints)
	}()
	return hints, nil
}

// exceptFrom is a filter that drops what a socket's own requests caused: Apply's thousands of changes are no news, and
// are looked at by who called it. The requester's port stands in nlmsg_pid, the last of the header's fields.
func exceptFrom(port uint32) []bpf.RawInstruction {
	const pidOffset = unix.SizeofNlMsghdr - 4
	loaded := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port)) // the filter loads in network order
	return []bpf.RawInstruction{
		{Op: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: pidOffset},
		{Op: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: loaded},
		{Op: unix.BPF_RET | unix.BPF_K},
		{Op: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
	}
}

// groups is the bit mask of netlink multicast groups.
func groups(ids ...uint) (mask uint32) {
	for _, id := range ids {
		mask |= 1 << (id - 1)
	}
	return mask
}

// gather is how long messages are left to come together. A pod causes dozens, and to be woken costs more than to read one.
const gather = 20 * time.Millisecond

// receive hints when a message concerns us. The first one after a silence is read at once.
func (k *Kernel) receive(ctx context.Context, conn *netlink.Conn, hints chan<- struct{}) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	buffer := make([]byte, messageBuffer)
	for ctx.Err() == nil {
		concerned, failed := false, error(nil)
		err := raw.Read(func(fd uintptr) (got bool) {
			got, concerned, failed = k.drain(int(fd), buffer)
			return got || failed != nil
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		if concerned {
			hint(hints)
		}
		select {
		case <-ctx.Done():
		case <-time.After(gather):
		}
	}
	return nil
}

// drain reads what is there: whether there was anything, and whether it concerns us.
func (k *Kernel) drain(fd int, buffer []byte) (got, concerned bool, err error) {
	for {
		n, err := unix.Read(fd, buffer)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return got, concerned, nil
		case err != nil:
			return got, concerned, err // ENOBUFS: messages were lost
		}
		got = true
		err = messages(buffer[:n], func(h header, data []byte) error {
			concerned = concerned || k.concerns(h.kind, data)
			return nil
		})
		concerned = concerned || err != nil
	}
}

func hint(hints chan<- struct{}) {
	select {
	case hints <- struct{}{}:
	default: // one is waiting already
	}
}

func (k *Kernel) concernsRoute(rtmsg []byte, owned map[int]bool) bool {
	if len(rtmsg) < unix.SizeofRtMsg || rtmsg[4] != unix.RT_TABLE_MAIN {
		return false
	}
	if rtmsg[5] == netstate.Protocol || rtmsg[1] == 0 { // ours, or a default route
		return true
	}
	if oif := attribute(rtmsg, unix.SizeofRtMsg, unix.RTA_OIF); len(oif) == 4 {
		if _, ours := owned[int(binary.NativeEndian.Uint32(oif))]; ours {
			return true
		}
	}
	dst, ok := netip.AddrFromSlice(attribute(rtmsg, unix.SizeofRtMsg, unix.RTA_DST))
	return ok && k.inNetworks(netip.PrefixFrom(dst, int(rtmsg[1])))
}

func field32(data []byte, at int) uint32 {
	if len(data) < at+4 {
		return 0
	}
	return binary.NativeEndian.Uint32(data[at:])
}

// attribute is the value of one attribute behind a message's fixed header, nil if there is none; names come
// without their closing zero.
func attribute(data []byte, header int, want uint16) []byte {
	if len(data) < header {
		return nil
	}
	ad, err := netlink.NewAttributeDecoder(data[header:])
	if err != nil {
		return nil
	}
	for ad.Next() {
		if ad.Type() == want {
			return ad.Bytes()
		}
	}
	return nil
}

// poll hints when one of the observed sysctls, or something of a part's, is not what it was.
func (k *Kernel) poll(ctx context.Context, hints chan<- struct{}) error {
	timer := time.NewTimer(pollEvery)
	defer timer.Stop()
	seen := k.silent()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		began := time.Now()
		now := k.silent()
		if !maps.Equal(now, seen) {
			seen = now
			hint(hints)
		}
		timer.Reset(max(pollEvery, pollShare*time.Since(began)))
	}
}

// silent is what the kernel sends no messages about. What cannot be read is Observe's to report.
func (k *Kernel) silent() netstate.State {
	f, state := k.filter.Load(), netstate.State{}
	_ = observeSysctls(f.sysctls, state)
	for _, part := range k.parts {
		if more, err := part.Observe(f.devs, nil); err == nil {
			state.Merge(more)
		}
	}
	return state
}
