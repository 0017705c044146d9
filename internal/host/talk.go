package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Talk is a TCP connection whose other end gives back what it gets, with a message every interval, until Close.
type Talk struct {
	conn   net.Conn
	done   sync.WaitGroup
	closed chan struct{}

	mu      sync.Mutex
	last    time.Time // of what came back
	silence time.Duration
	failed  error
}

// Talk connects to a server that Echo started, and sends it messages of size bytes.
func (h Host) Talk(ctx context.Context, at netip.AddrPort, size int, interval time.Duration) (*Talk, error) {
	conn, err := h.Dial(ctx, "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("connect %s to %s: %w", h.Name, at, err)
	}
	t := &Talk{conn: conn, closed: make(chan struct{}), last: time.Now()}
	t.done.Go(func() { t.send(size, interval) })
	t.done.Go(t.receive)
	return t, nil
}

func (t *Talk) send(size int, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	message := make([]byte, size)
	for {
		select {
		case <-t.closed:
			return
		case <-tick.C:
		}
		if _, err := t.conn.Write(message); err != nil {
			t.fail(err)
			return
		}
	}
}

func (t *Talk) receive() {
	b := make([]byte, 64<<10)
	for {
		if _, err := t.conn.Read(b); err != nil {
			t.fail(err)
			return
		}
		t.mu.Lock()
		t.silence = max(t.silence, time.Since(t.last))
		t.last = time.Now()
		t.mu.Unlock()
	}
}

// fail keeps the error that ended the connection.
func (t *Talk) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(err, io.EOF) {
		err = errors.New("the other end closed it")
	}
	if t.failed == nil {
		t.failed = fmt.Errorf("the connection from %s to %s: %w", t.conn.LocalAddr(), t.conn.RemoteAddr(), err)
	}
}

// Silence returns the longest time for which nothing came back since the last call, and why the connection ended, if it did.
func (t *Talk) Silence() (time.Duration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	silence := max(t.silence, time.Since(t.last))
	t.silence, t.last = 0, time.Now()
	return silence, t.failed
}

// Close ends the connection and releases its socket, which would keep the namespace alive.
func (t *Talk) Close() {
	close(t.closed)
	t.conn.Close()
	t.done.Wait()
}
