//go:build soak

package causes

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/lab"
)

// amount is what a TCP connection carries in each direction.
const amount = 64 << 10

var (
	errNoReply = errors.New("no reply")
	errTold    = errors.New(told)
)

// server answers in a pod: TCP and UDP on one port.
type server struct {
	port     uint16
	listener net.Listener
	conn     net.PacketConn
}

// serve listens on all addresses of a namespace, also those that come later.
func serve(ctx context.Context, in func(func() error) error) (*server, error) {
	s := &server{}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	err := in(func() (err error) {
		if s.listener, err = lc.Listen(ctx, "tcp", ":0"); err != nil {
			return err
		}
		s.conn, err = lc.ListenPacket(ctx, "udp", s.listener.Addr().String())
		return err
	})
	if err != nil {
		return nil, err
	}
	s.port = s.listener.Addr().(*net.TCPAddr).AddrPort().Port()
	go s.echo()
	go s.accept()
	return s, nil
}

func (s *server) echo() {
	b := make([]byte, 1<<16)
	for {
		n, from, err := s.conn.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = s.conn.WriteTo(b[:n], from)
		}
	}
}

func (s *server) accept() {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			go answer(conn)
		}
	}
}

// answer takes all that comes, and sends as much.
func answer(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * patience))
	if _, err := io.CopyN(io.Discard, conn, amount); err == nil {
		_, _ = conn.Write(make([]byte, amount))
	}
}

func (s *server) close() {
	_ = s.listener.Close()
	_ = s.conn.Close()
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// transfer connects, and sends data both ways.
func transfer(ctx context.Context, dial dialer, to netip.AddrPort, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := dial(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := conn.Write(make([]byte, amount)); err != nil {
		return err
	}
	_, err = io.CopyN(io.Discard, conn, amount)
	return err
}

// datagrams sends ICMP and UDP in both sizes from one pod to all others.
func (o *oracle) datagrams(ctx context.Context, from int, f family, limit time.Duration, note func(probe, error)) {
	p := o.pods[from]
	sockets, err := openSockets(ctx, p, f)
	if err != nil {
		for _, s := range sockets {
			s.conn.Close()
		}
		for i := range o.pods {
			if i != from {
				note(probe{p.ID(), o.pods[i].ID(), "icmp" + suffix(f)}, err)
			}
		}
		return
	}
	var group sync.WaitGroup
	for _, s := range sockets {
		conn := s.conn
		r := &datagrams{oracle: o, from: from, kind: s.kind, sizes: s.sizes, family: f, conn: conn, note: note,
			open: map[uint32]probe{}, stamp: uint16(rand.N(1 << 16))}
		group.Go(func() {
			defer conn.Close()
			r.send()
			r.receive(time.Now().Add(limit))
		})
	}
	group.Wait()
}

// socket is one for the datagrams of a kind and of some sizes.
type socket struct {
	kind  string
	sizes []string
	conn  net.PacketConn
}

// sizes are small and as large as a pod may send.
var sizes = []string{"", " full"}

// openSockets opens one for ICMP and one for UDP of each size, all with ports and numbers that nobody has used: a rule of
// address translation sees only the first packet between two ports.
func openSockets(ctx context.Context, p *lab.Pod, f family) (sockets []socket, err error) {
	icmp, udp := [2]string{"ip4:icmp", "0.0.0.0"}, [2]string{"udp4", "0.0.0.0:0"}
	if f == ip6 {
		icmp, udp = [2]string{"ip6:ipv6-icmp", "::"}, [2]string{"udp6", "[::]:0"}
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error { return forbidFragments(c, f) }}
	open := func(kind string, sizes []string, where [2]string) error {
		conn, err := lc.ListenPacket(ctx, where[0], where[1])
		if err == nil {
			sockets = append(sockets, socket{kind, sizes, conn})
		}
		return err
	}
	err = p.Do(func() error {
		return errors.Join(open("icmp", sizes, icmp), open("udp", sizes[:1], udp), open("udp", sizes[1:], udp))
	})
	return sockets, err
}

func forbidFragments(c syscall.RawConn, f family) (err error) {
	return errors.Join(c.Control(func(fd uintptr) {
		if f == ip4 {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			return
		}
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
	}), err)
}

// datagrams are what one socket sends to all pods, and what of it was not answered.
type datagrams struct {
	*oracle
	from   int
	kind   string
	sizes  []string
	family family
	conn   net.PacketConn
	note   func(probe, error)
	open   map[uint32]probe
	stamp  uint16 // of its echoes
}

func (r *datagrams) send() {
	for i, p := range r.pods {
		if i == r.from {
			continue
		}
		for _, size := range r.sizes {
			k := slices.Index(sizes, size)
			number := uint32(2*i + k)
			pr := probe{r.pods[r.from].ID(), p.ID(), r.kind + suffix(r.family) + size}
			to := &net.IPAddr{IP: addrOf(p.Addrs, r.family).AsSlice()}
			var err error
			if r.kind == "icmp" {
				_, err = r.conn.WriteTo(r.echo(number, k, r.payload(k)), to)
			} else {
				b := make([]byte, r.payload(k))
				binary.BigEndian.PutUint32(b, number)
				_, err = r.conn.WriteTo(b, &net.UDPAddr{IP: to.IP, Port: int(r.servers[i].port)})
			}
			if errors.Is(err, unix.EMSGSIZE) {
				err = errTold
			}
			if r.note(pr, err); err == nil {
				r.open[number] = pr
			}
		}
	}
}

// payload is behind the headers of ICMP and UDP, which have one length.
func (r *datagrams) payload(full int) int {
	if full == 0 {
		return 16
	}
	return r.mtu[r.pods[r.from].ID()] - map[family]int{ip4: 28, ip6: 48}[r.family]
}

func (r *datagrams) echo(number uint32, full, size int) []byte {
	data := make([]byte, size)
	binary.BigEndian.PutUint32(data, number)
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: r.id(full), Seq: int(number), Data: data}}
	if r.family == ip6 {
		m.Type = ipv6.ICMPTypeEchoRequest
	}
	b, _ := m.Marshal(nil) // an echo can be encoded
	return b
}

// receive waits for what is missing.
func (r *datagrams) receive(deadline time.Time) {
	_ = r.conn.SetReadDeadline(deadline)
	b := make([]byte, 1<<16)
	for len(r.open) > 0 {
		n, from, err := r.conn.ReadFrom(b)
		if err != nil {
			break
		}
		if number, ok := r.decode(b[:n]); ok && int(number/2) < len(r.pods) && r.of(from, int(number/2)) {
			delete(r.open, number)
		}
	}
	for _, p := range r.open {
		r.note(p, errNoReply)
	}
}

// of reports whether an answer came from the address that was asked.
func (r *datagrams) of(from net.Addr, pod int) bool {
	ip, _ := netip.AddrFromSlice(addressOf(from))
	return ip.Unmap() == addrOf(r.pods[pod].Addrs, r.family)
}

func addressOf(a net.Addr) net.IP {
	if u, ok := a.(*net.UDPAddr); ok {
		return u.IP
	}
	return a.(*net.IPAddr).IP
}

func (r *datagrams) decode(b []byte) (uint32, bool) {
	if r.kind == "udp" {
		return binary.BigEndian.Uint32(append(b, 0, 0, 0, 0)), len(b) >= 4
	}
	protocol, want := 1, icmp.Type(ipv4.ICMPTypeEchoReply)
	if r.family == ip6 {
		protocol, want = 58, ipv6.ICMPTypeEchoReply
	}
	m, err := icmp.ParseMessage(protocol, b)
	if err != nil || m.Type != want {
		return 0, false
	}
	echo, ok := m.Body.(*icmp.Echo)
	if !ok || len(echo.Data) < 4 {
		return 0, false
	}
	number := binary.BigEndian.Uint32(echo.Data)
	return number, echo.ID == r.id(int(number%2))
}

// id is another one in each round and for each size: a rule of address translation sees only a connection's first packet.
func (r *datagrams) id(full int) int { return int(r.stamp&^1) | full }
