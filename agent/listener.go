package agent

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// mostConnections is how many connections of a kind the health port has open at once.
const mostConnections = 64

// connectionBudget returns how many connections of a kind there may be, fewer where the process may have so few descriptors
// that the data path would have none left.
func connectionBudget() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return mostConnections
	}
	return max(2, min(mostConnections, (int(min(limit.Cur, 1024))-64)/4))
}

// budgeted is a listener with a bounded number of open connections: for a new one the oldest of its kind is closed, so that
// nobody waits behind those that never end. Connections from this machine are one kind, and all others one: what pods or
// other nodes open takes no place of kubelet's or the doctor's.
type budgeted struct {
	net.Listener
	most int

	mu              sync.Mutex
	here, elsewhere []net.Conn // the oldest first
}

// Accept implements net.Listener.
func (b *budgeted) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	of := &b.elsewhere
	if fromHere(conn) {
		of = &b.here
	}
	if len(*of) >= b.most {
		(*of)[0].Close()
		*of = (*of)[1:]
	}
	*of = append(*of, conn)
	return &budgetedConn{conn, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		*of = slices.DeleteFunc(*of, func(c net.Conn) bool { return c == conn })
	}}, nil
}

// budgetedConn is a connection that gives its place back.
type budgetedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *budgetedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// fromHere reports whether a connection comes from this machine: whoever connects to an address of its own does so from it.
func fromHere(c net.Conn) bool {
	remote, err := netip.ParseAddrPort(c.RemoteAddr().String())
	local, err2 := netip.ParseAddrPort(c.LocalAddr().String())
	return err == nil && err2 == nil && remote.Addr() == local.Addr()
}
