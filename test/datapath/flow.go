package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
)

// end is one side of a measurement: a node or a pod.
type end struct {
	host.Host
	addr netip.Addr
}

// patience is how long a socket waits for a packet before it is lost.
const patience = time.Second

// flow is one open flow, TCP or UDP: what the client writes, a byte at a time, the server writes back. Sockets and their
// threads block, because waiting in Go's scheduler would cost as much as the path that is measured.
type flow struct {
	client, server int
	network        string
	placement      placement
	done           chan struct{} // closed when the server has ended
}

// openFlow opens a flow; network is "tcp" or "udp".
func (p placement) openFlow(network string, from, to end) (*flow, error) {
	connect := connectTCP
	if network == "udp" {
		connect = connectUDP
	}
	client, server, err := connect(from, to)
	if err != nil {
		return nil, fmt.Errorf("open a flow of %s from %s to %s: %w", network, from.Name, to.addr, err)
	}
	f := &flow{client: client, server: server, network: network, placement: p, done: make(chan struct{})}
	go p.serve(f.done, func() bool { return answer(server) })
	return f, nil
}

// serve calls one until it returns false, and then closes done.
func (p placement) serve(done chan struct{}, one func() bool) {
	defer close(done)
	release, err := p.hold()
	if err != nil {
		return // its client says so too
	}
	defer release()
	for one() {
	}
}

// close ends the server's wait with shutdown(2), which close(2) would not.
func (f *flow) close() {
	_ = unix.Shutdown(f.server, unix.SHUT_RDWR) // a client that is gone did so already
	<-f.done
	unix.Close(f.server)
	unix.Close(f.client)
}

// measure sends a byte and waits for its answer, again and again for so long. Before that a few pass that do not count, so
// that neighbours are known and caches are warm.
func (f *flow) measure(length time.Duration) (exchange, error) {
	release, err := f.placement.hold()
	if err != nil {
		return exchange{}, err
	}
	defer release()
	for range 100 {
		if err := f.ask(); err != nil && !f.forgives(err) {
			return exchange{}, err
		}
	}
	var took []time.Duration
	var lost int
	began := time.Now()
	last := began
	for last.Sub(began) < length {
		err := f.ask()
		now := time.Now()
		switch {
		case err == nil:
			took = append(took, now.Sub(last))
		case f.forgives(err):
			lost++
		default:
			return exchange{}, err
		}
		last = now
	}
	return summary(took, last.Sub(began), lost), nil
}

// summary sorts the times.
func summary(took []time.Duration, length time.Duration, lost int) exchange {
	if len(took) == 0 {
		return exchange{lost: lost}
	}
	slices.Sort(took)
	return exchange{
		rate: float64(len(took)) / length.Seconds(),
		p50:  took[len(took)/2],
		p99:  took[len(took)*99/100],
		lost: lost,
	}
}

// forgives reports whether a datagram was lost, which a benchmark counts. TCP sends again by itself.
func (f *flow) forgives(err error) bool { return f.network == "udp" && errors.Is(err, unix.EAGAIN) }

// ask sends a byte and waits for its answer.
func (f *flow) ask() error {
	if err := write(f.client); err != nil {
		return fmt.Errorf("send a byte over %s: %w", f.network, err)
	}
	if err := read(f.client); err != nil {
		return fmt.Errorf("wait for the answer to a byte over %s: %w", f.network, err)
	}
	return nil
}

// answer waits for a byte and sends one back; it reports whether another may come.
func answer(fd int) bool {
	err := read(fd)
	if errors.Is(err, unix.EAGAIN) {
		return true // nobody asked for a while
	}
	return err == nil && write(fd) == nil
}

var errClosed = errors.New("the other side has closed the connection")

// read waits for a byte. Sockets that have a time limit do not go on after a signal, and Go's runtime sends itself some.
func read(fd int) error {
	var b [1]byte
	for {
		n, err := unix.Read(fd, b[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			return errClosed
		}
		return err
	}
}

func write(fd int) error {
	for {
		if _, err := unix.Write(fd, []byte{'x'}); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
