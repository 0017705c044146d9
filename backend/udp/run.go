package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	wgtun "golang.zx2c4.com/wireguard/tun"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/tun"
)

// Prepare has nothing to do.
func (b Backend) Prepare(context.Context, backend.Site) error { return nil }

// Run moves packets between the device and the peers until ctx is done.
func (b Backend) Run(ctx context.Context, site backend.Site, views <-chan backend.View) error {
	var first backend.View
	select {
	case <-ctx.Done():
		return nil
	case first = <-views:
	}
	p, err := b.open(site, first)
	if err != nil {
		return err
	}
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return p.follow(inner, views) })
	group.Go(p.send)
	for _, receive := range p.receivers {
		group.Go(func() error { return p.receive(receive) })
	}
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// proxy is one Run.
type proxy struct {
	Backend
	site      backend.Site
	dev       wgtun.Device
	bind      conn.Bind
	receivers []conn.ReceiveFunc // one per address family
	table     atomic.Pointer[table]
}

// maxPacket is the longest IP packet, and what the kernel puts together from several, in bytes.
const maxPacket = 65535

func (b Backend) open(site backend.Site, view backend.View) (*proxy, error) {
	dev, err := tun.Open(Device)
	if err != nil {
		return nil, err
	}
	p := &proxy{Backend: b, site: site, dev: dev, bind: conn.NewStdNetBind()}
	p.learn(view)
	if p.receivers, _, err = p.bind.Open(uint16(b.options.Port)); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on UDP port %d: %w", b.options.Port, err), dev.Close())
	}
	site.Say("moving packets", nil, "dev", Device, "port", b.options.Port)
	return p, nil
}

// learn makes the table of a view.
func (p *proxy) learn(view backend.View) {
	t, err := p.newTable(view, p.bind.ParseEndpoint)
	if err != nil {
		p.site.Say("find the peers", err)
	}
	p.table.Store(t)
}

// follow keeps the table up to date until ctx is done or the device is gone. Closing everything ends the others.
func (p *proxy) follow(ctx context.Context, views <-chan backend.View) error {
	for {
		select {
		case <-ctx.Done():
			return p.close()
		case view := <-views:
			p.learn(view)
		}
		if err := tun.Alive(p.dev); err != nil {
			return errors.Join(fmt.Errorf("the device %s was deleted: %w", Device, err), p.close())
		}
	}
}

func (p *proxy) close() error { return errors.Join(p.bind.Close(), p.dev.Close()) }

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
	batch := make([][]byte, 0, p.bind.BatchSize())
	var to conn.Endpoint
	for {
		n, err := p.dev.Read(bufs, sizes, tun.Headroom)
		if errors.Is(err, os.ErrClosed) {
			return fmt.Errorf("read from %s: %w", Device, err)
		}
		t := p.table.Load()
		for i := range n {
			packet := bufs[i][tun.Headroom : tun.Headroom+sizes[i]]
			end := p.route(t, packet)
			if end != to || len(batch) == cap(batch) {
				p.transmit(batch, to)
				batch = batch[:0]
			}
			if to = end; end != nil {
				batch = append(batch, packet)
			}
		}
		p.transmit(batch, to)
		batch = batch[:0]
	}
}

// route is where a packet goes. If nowhere, its sender is told.
func (p *proxy) route(t *table, packet []byte) conn.Endpoint {
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

// transmit sends packets to one peer. A peer that cannot be reached now costs these packets and nothing else.
func (p *proxy) transmit(packets [][]byte, to conn.Endpoint) {
	if len(packets) == 0 {
		return
	}
	err := p.bind.Send(packets, to)
	var disabled conn.ErrUDPGSODisabled
	if errors.As(err, &disabled) {
		err = disabled.RetryErr // the packets went without the kernel's segmentation
	}
	if errors.Is(err, unix.EINVAL) && len(packets) > 1 {
		// The kernel refuses to segment into datagrams that are longer than the path's MTU; single ones it fragments.
		for _, packet := range packets {
			p.transmit([][]byte{packet}, to)
		}
		return
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		p.site.Say("send to a peer", err, "via", to.DstIP().String())
	}
}

// receive is the way from the peers to the device, for one address family.
func (p *proxy) receive(from conn.ReceiveFunc) error {
	n := p.bind.BatchSize()
	bufs, packets, sizes, ends := buffers(n), make([][]byte, n), make([]int, n), make([]conn.Endpoint, n)
	for i := range bufs {
		packets[i] = bufs[i][tun.Headroom:]
	}
	batch := make([][]byte, 0, n)
	for {
		n, err := from(packets, sizes, ends)
		if err != nil {
			return fmt.Errorf("receive on UDP port %d: %w", p.options.Port, err)
		}
		batch = batch[:0]
		for i := range n {
			if _, _, ok := addresses(packets[i][:sizes[i]]); ok {
				batch = append(batch, bufs[i][:tun.Headroom+sizes[i]])
			}
		}
		if len(batch) == 0 {
			continue
		}
		if _, err := p.dev.Write(batch, tun.Headroom); errors.Is(err, os.ErrClosed) {
			return fmt.Errorf("write to %s: %w", Device, err)
		}
	}
}
