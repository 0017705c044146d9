package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// maxConnections is how many connections one measurement opens: what they leave behind (TIME_WAIT, entries of conntrack)
// would slow down the measurements after it.
const maxConnections = 5000

func connectTCP(from, to end) (client, server int, err error) {
	listener, at, err := listenTCP(to)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(listener)
	if client, err = from.socket(unix.SOCK_STREAM); err != nil {
		return 0, 0, err
	}
	err = dial(client, at)
	if err == nil {
		server, err = accept(listener)
	}
	if err != nil {
		unix.Close(client)
	}
	return client, server, err
}

// connectUDP connects both sockets, so that both can read and write.
func connectUDP(from, to end) (client, server int, err error) {
	client, clientAt, err := from.bound(unix.SOCK_DGRAM)
	if err != nil {
		return 0, 0, err
	}
	server, serverAt, err := to.bound(unix.SOCK_DGRAM)
	if err != nil {
		unix.Close(client)
		return 0, 0, err
	}
	if err = errors.Join(dial(client, serverAt), dial(server, clientAt)); err != nil {
		unix.Close(client)
		unix.Close(server)
	}
	return client, server, err
}

// connections opens one connection after the other, sends a byte and waits for its answer over each, and returns how many
// that are a second.
func (p placement) connections(from, to end, length time.Duration) (float64, error) {
	listener, at, err := listenTCP(to)
	if err != nil {
		return 0, err
	}
	done := make(chan struct{})
	go p.serve(done, func() bool { return serveOne(listener) })
	var count int
	var took time.Duration
	err = from.Do(func() error { // on one thread, which is where its sockets must be made
		release, err := p.hold()
		if err != nil {
			return err
		}
		defer release()
		began := time.Now()
		for ; count < maxConnections && took < length; took = time.Since(began) {
			if err := askOnce(at); err != nil {
				return fmt.Errorf("connection %d from %s to %s: %w", count+1, from.Name, to.addr, err)
			}
			count++
		}
		return nil
	})
	_ = unix.Shutdown(listener, unix.SHUT_RDWR) // ends accept(2)
	<-done
	unix.Close(listener)
	return float64(count) / took.Seconds(), err
}

// askOnce connects, sends a byte, waits for the answer and closes the connection.
func askOnce(at unix.Sockaddr) error {
	fd, err := socket(at, unix.SOCK_STREAM)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := dial(fd, at); err != nil {
		return err
	}
	if err := write(fd); err != nil {
		return err
	}
	return read(fd)
}

// serveOne answers one connection and waits until the client has closed it; it reports whether another may come.
func serveOne(listener int) bool {
	fd, err := accept(listener)
	if errors.Is(err, unix.EAGAIN) {
		return true
	}
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	for answer(fd) {
	}
	return true
}

func listenTCP(to end) (fd int, at unix.Sockaddr, err error) {
	fd, at, err = to.bound(unix.SOCK_STREAM)
	if err != nil {
		return 0, nil, err
	}
	if err := unix.Listen(fd, 16); err != nil {
		unix.Close(fd)
		return 0, nil, fmt.Errorf("listen on %s: %w", to.addr, err)
	}
	return fd, at, nil
}

func accept(listener int) (fd int, err error) {
	for {
		fd, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("accept a connection: %w", err)
		}
		return fd, prepare(fd)
	}
}

// dial connects. After a signal the same call waits on, and says so if that was done meanwhile.
func dial(fd int, at unix.Sockaddr) error {
	err := unix.Connect(fd, at)
	for errors.Is(err, unix.EINTR) {
		if err = unix.Connect(fd, at); errors.Is(err, unix.EISCONN) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}

// bound makes a socket of this side at a free port of its address.
func (e end) bound(kind int) (fd int, at unix.Sockaddr, err error) {
	if fd, err = e.socket(kind); err != nil {
		return 0, nil, err
	}
	if err = unix.Bind(fd, sockaddr(e.addr)); err == nil {
		at, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return 0, nil, fmt.Errorf("bind a socket of %s to %s: %w", e.Name, e.addr, err)
	}
	return fd, at, nil
}

// socket makes a socket in the namespace of this side.
func (e end) socket(kind int) (fd int, err error) {
	err = e.Do(func() error {
		fd, err = socket(sockaddr(e.addr), kind)
		return err
	})
	return fd, err
}

// socket makes a socket in the thread's namespace, of an address's family.
func socket(at unix.Sockaddr, kind int) (int, error) {
	family := unix.AF_INET
	if _, ok := at.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make a socket: %w", err)
	}
	return fd, prepare(fd)
}

// prepare sets a time limit, and lets TCP send each byte at once.
func prepare(fd int) error {
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	if kind, kindErr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); kindErr == nil && kind == unix.SOCK_STREAM {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	}
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("set up a socket: %w", err)
	}
	return nil
}

func sockaddr(addr netip.Addr) unix.Sockaddr {
	if addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4()}
	}
	return &unix.SockaddrInet6{Addr: addr.As16()}
}
