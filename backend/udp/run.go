package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	wgtun "golang.zx2c4.com/wireguard/tun"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/datagram"
	"github.com/twill-net/twill/backend/tun"

	"github.com/twill-net/twill/netstate"
)

// Prepare has nothing to do.
func (b Backend) Prepare(context.Context, backend.Env) error { return nil }

// Run moves packets between the device and the peers until ctx is done.
func (b Backend) Run(ctx context.Context, env backend.Env, views <-chan backend.Input) error {
	var first backend.Input
	select {
	case <-ctx.Done():
		return nil
	case first = <-views:
	}
	p, err := b.open(env, first)
	if err != nil {
		return err
	}
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return p.follow(inner, views) })
	group.Go(p.send)
	for _, s := range p.sockets {
		group.Go(func() error { return p.receive(s) })
	}
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// proxy is one Run.
type proxy struct {
	Backend
	env     backend.Env
	dev     wgtun.Device
	sockets map[netstate.Family]*datagram.Socket // of the node's families
	table   atomic.Pointer[table]
}

// maxPacket is the longest IP packet, and what the kernel puts together from several, in bytes.
const maxPacket = 65535

func (b Backend) open(env backend.Env, view backend.Input) (*proxy, error) {
	dev, err := tun.Open(Device)
	if err != nil {
		return nil, err
	}
	p := &proxy{Backend: b, env: env, dev: dev, sockets: map[netstate.Family]*datagram.Socket{}}
	p.table.Store(b.newTable(view))
	for _, s := range view.Snapshot.Local.Stacks {
		socket, err := datagram.Listen(b.options.Port, s.Family())
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen on UDP port %d: %w", b.options.Port, err), p.close())
		}
		p.sockets[s.Family()] = socket
	}
	env.Log.Info("moving packets", "dev", Device, "port", b.options.Port)
	return p, nil
}

// follow keeps the table up to date until ctx is done or the device is gone. Closing everything ends the others.
func (p *proxy) follow(ctx context.Context, views <-chan backend.Input) error {
	for {
		select {
		case <-ctx.Done():
			return p.close()
		case view := <-views:
			p.table.Store(p.newTable(view))
		}
		if err := tun.Alive(p.dev); err != nil {
			return errors.Join(fmt.Errorf("the device %s was deleted: %w", Device, err), p.close())
		}
	}
}

func (p *proxy) close() error {
	errs := []error{p.dev.Close()}
	for _, s := range p.sockets {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// buffers are as many as one call may fill.
func buffers(n int) [][]byte {
	bufs := make([][]byte, n)
	for i := range bufs {
		bufs[i] = make([]byte, tun.Headroom+maxPacket)
	}
	return bufs
}

// send is the way from the device to the peers.
func (p *proxy) send() error {
	bufs, sizes := buffers(p.dev.BatchSize()), make([]int, p.dev.BatchSize())
	senders := map[netstate.Family]*datagram.Sender{}
	for f, s := range p.sockets {
		senders[f] = &datagram.Sender{Socket: s}
	}
	for {
		n, err := p.dev.Read(bufs, sizes, tun.Headroom)
		if errors.Is(err, os.ErrClosed) {
			return fmt.Errorf("read from %s: %w", Device, err)
		}
		t := p.table.Load()
		for i := range n {
			packet := bufs[i][tun.Headroom : tun.Headroom+sizes[i]]
			if end := p.route(t, packet); end != nil {
				if s := senders[netstate.FamilyOf(end.AddrPort().Addr())]; s != nil {
					s.Add(packet, end, netip.Addr{})
				}
			}
		}
		for _, s := range senders {
			s.Flush(p.lost)
		}
	}
}

// route is where a packet goes. If nowhere, its sender is told.
func (p *proxy) route(t *table, packet []byte) *net.UDPAddr {
	_, dst, ok := addresses(packet)
	if !ok {
		return nil
	}
	if end := t.find(dst); end != nil {
		return end
	}
	b := make([]byte, tun.Headroom, tun.Headroom+least6)
	if b = unreachable(b, packet); len(b) > tun.Headroom {
		_, _ = p.dev.Write([][]byte{b}, tun.Headroom) // as good as lost on the way, if it cannot be written
	}
	return nil
}

// lost tells of a message that could not be sent: a peer that cannot be reached now costs these packets and
// nothing else.
func (p *proxy) lost(to net.Addr, err error) {
	if !errors.Is(err, net.ErrClosed) {
		p.env.Log.Error("send to a peer", "via", to.String(), "err", err)
	}
}

// receiveMessages is how many messages, each of many datagrams, are taken at a time.
const receiveMessages = 4

// receive is the way from the peers to the device, for one address family.
func (p *proxy) receive(s *datagram.Socket) error {
	r := datagram.NewReceiver(s, receiveMessages)
	w := writer{dev: p.dev, table: &p.table, bufs: buffers(datagram.Most(receiveMessages))}
	for {
		if err := r.Receive(w.add); err != nil {
			return fmt.Errorf("receive on UDP port %d: %w", p.options.Port, err)
		}
		if err := w.flush(); errors.Is(err, os.ErrClosed) {
			return fmt.Errorf("write to %s: %w", Device, err)
		}
	}
}

// writer collects packets for the device.
type writer struct {
	dev   wgtun.Device
	table *atomic.Pointer[table]
	bufs  [][]byte // with the headroom that the device wants before each packet, and room for those that it puts together
	batch [][]byte
}

// add takes a datagram if it is an IP packet that its sender may send.
func (w *writer) add(packet []byte, from netip.AddrPort, _ netip.Addr) {
	src, _, ok := addresses(packet)
	if ok && len(w.batch) < len(w.bufs) && w.table.Load().takes(from.Addr().Unmap(), src) {
		buf := w.bufs[len(w.batch)]
		w.batch = append(w.batch, buf[:tun.Headroom+copy(buf[tun.Headroom:], packet)])
	}
}

func (w *writer) flush() error {
	defer func() { w.batch = w.batch[:0] }()
	if len(w.batch) == 0 {
		return nil
	}
	_, err := w.dev.Write(w.batch, tun.Headroom)
	return err
}
