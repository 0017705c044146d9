// Package redial closes a client's connections when the address that they came from is gone. Without it, TCP
// retransmits until it gives up, and a node whose underlay address changed could not publish the new one.
package redial

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Dialer opens connections and remembers the open ones. The zero value is ready.
type Dialer struct {
	mu    sync.Mutex
	conns map[*conn]bool
	last  netip.AddrPort
}

// keepAlive is how often an idle connection is probed.
const keepAlive = 15 * time.Second

// DialContext is net.Dialer's.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{KeepAlive: keepAlive}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tracked := &conn{Conn: c, dialer: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns == nil {
		d.conns = map[*conn]bool{}
	}
	d.conns[tracked] = true
	if to, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		d.last = netip.AddrPortFrom(to.AddrPort().Addr().Unmap(), to.AddrPort().Port())
	}
	return tracked, nil
}

// Last returns where the last connection led, invalid before there was one.
func (d *Dialer) Last() netip.AddrPort {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// Redial closes every open connection; their users open new ones.
func (d *Dialer) Redial() {
	d.mu.Lock()
	open := d.conns
	d.conns = nil
	d.mu.Unlock()
	for c := range open {
		c.Conn.Close()
	}
}

type conn struct {
	net.Conn
	dialer *Dialer
}

// Close forgets the connection too.
func (c *conn) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.conns, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close()
}
