package controlplanetest

import (
	"io"
	"maps"
	"net"
	"sync"
	"testing"
)

// Wire forwards connections to the API server until it is cut.
type Wire struct {
	Address string // host:port, where it listens
	target  string

	t testing.TB

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	group    sync.WaitGroup
}

// NewWire carries connections to target until it is cut or the test ends.
func NewWire(t testing.TB, target string) *Wire {
	w := &Wire{t: t, Address: "127.0.0.1:0", target: target, conns: map[net.Conn]bool{}}
	w.Mend()
	w.Address = w.listener.Addr().String()
	t.Cleanup(func() { w.Cut(); w.group.Wait() })
	return w
}

// Mend listens again, on the same port.
func (w *Wire) Mend() {
	l, err := net.Listen("tcp", w.Address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.listener = l
	w.mu.Unlock()
	w.group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.group.Go(func() { w.carry(c) })
		}
	})
}

// Cut refuses new connections and breaks the old ones.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listener.Close()
	for c := range w.conns {
		c.Close()
	}
}

// Open returns the connections that there are.
func (w *Wire) Open() map[net.Conn]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.conns)
}

func (w *Wire) carry(c net.Conn) {
	defer c.Close()
	d, err := net.Dial("tcp", w.target)
	if err != nil {
		return
	}
	defer d.Close()
	w.mu.Lock()
	w.conns[c], w.conns[d] = true, true
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(c, d); c.Close() })
	both.Go(func() { _, _ = io.Copy(d, c); d.Close() })
	both.Wait()
	w.mu.Lock()
	delete(w.conns, c)
	delete(w.conns, d)
	w.mu.Unlock()
}
