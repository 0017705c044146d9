package enforced

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

// allowedPort is what suspectPolicy lets through, and deniedPort what it does not.
const allowedPort, deniedPort = 8000, 9000

// suspectPolicy isolates a pod but for one port.
const suspectPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: suspect}
spec:
  podSelector: {matchLabels: {pod: suspect}}
  policyTypes: [Ingress, Egress]
  ingress: [{ports: [{port: 8000, protocol: UDP}]}]
  egress:
  - to: [{podSelector: {matchLabels: {pod: near}}}, {podSelector: {matchLabels: {pod: far}}}]
    ports: [{port: 8000, protocol: UDP}]
`

// TestICMPErrors: ICMP errors about a connection that policies deny do not pass, whichever end sends them and whoever began the
// connection, also through DNAT and masquerade, nor does a router's. Those about one that is allowed pass, from either end and from
// a router. An isolated pod sends none about a connection of others.
func TestICMPErrors(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "terr", Nodes: 2, Family: lab.Dual, Store: lab.File, NetworkPolicy: true})
	node, other := l.Nodes()[0], l.Nodes()[1]
	suspect, near, far := addPod(t, node, "suspect"), addPod(t, node, "near"), addPod(t, other, "far")
	settled(t, l)
	for n, to := range map[*lab.Node]*lab.Pod{node: far, other: suspect} {
		if err := n.LoadRules(t.Context(), fmt.Sprintf(services, to.Addr(netstate.IPv4), to.Addr(netstate.IPv6))); err != nil {
			t.Fatal(err)
		}
	}
	q := &quoting{T: t, servers: map[netip.AddrPort]*net.UDPConn{}, sockets: map[socketOf]net.PacketConn{}, came: map[string]bool{}}
	for _, f := range netstate.Families {
		for _, port := range []uint16{allowedPort, deniedPort} {
			for _, ends := range [][2]*lab.Pod{{suspect, near}, {near, suspect}, {suspect, far}, {far, suspect}} {
				client, server := ends[0], ends[1]
				at := netip.AddrPortFrom(server.Addr(f), port)
				q.begin(client, server, at, at, port == allowedPort)
				if client == far || server == far {
					q.begin(client, server, netip.AddrPortFrom(service[f], port), at, port == allowedPort)
				}
				if server == far {
					q.add("a router, of "+q.last.name, other.Host, q.last.byServer, port == allowedPort)
				}
			}
		}
		at := netip.AddrPortFrom(far.Addr(f), allowedPort)
		c := q.begin(near, far, at, at, true)
		q.add("a pod that is no end, of "+c.name, suspect.Host, c.byServer, false)
	}
	q.expect("without policies", func(icmpError) bool { return true })
	if err := l.ApplyManifest("suspect.yaml", []byte(suspectPolicy)); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	q.expect("with policies", func(e icmpError) bool { return e.allowed })
	if err := l.DeleteManifest("suspect.yaml"); err != nil {
		t.Fatal(err)
	}
	settled(t, l)
	q.expect("without policies again", func(icmpError) bool { return true })
}

// quoting sends ICMP errors that quote packets of connections.
type quoting struct {
	*testing.T
	servers map[netip.AddrPort]*net.UDPConn
	clients []net.Conn
	sockets map[socketOf]net.PacketConn
	last    connection
	errors  []icmpError
	mu      sync.Mutex
	came    map[string]bool
}

// socketOf tells raw sockets.
type socketOf struct {
	host   string
	family netstate.Family
}

// connection is one that has begun, with a packet that each end got.
type connection struct {
	name               string
	byServer, byClient packet
}

// packet is what an end got: the other end may be an address that stands for it there.
type packet struct{ from, to netip.AddrPort }

// icmpError is an error that is sent. Its name is in what it quotes.
type icmpError struct {
	name    string
	by      net.PacketConn
	about   packet
	kind    [2]byte
	allowed bool
}

// begin begins a connection over UDP, and adds the errors that both ends send.
func (q *quoting) begin(client, server *lab.Pod, to, at netip.AddrPort, allowed bool) connection {
	q.Helper()
	if q.servers[at] == nil {
		q.servers[at] = listen(q.T, server.Host, at)
	}
	var conn net.Conn
	err := client.Do(func() (err error) {
		conn, err = net.Dial("udp", to.String())
		return err
	})
	if err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { conn.Close() })
	var peer netip.AddrPort
	testwait.Nil(q.T, "a question and an answer", func() error {
		if _, err := conn.Write([]byte("question")); err != nil {
			return err
		}
		_ = q.servers[at].SetReadDeadline(time.Now().Add(time.Second))
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		b := make([]byte, 100)
		if _, peer, err = q.servers[at].ReadFromUDPAddrPort(b); err != nil {
			return err
		}
		if _, err := q.servers[at].WriteToUDPAddrPort([]byte("answer"), peer); err != nil {
			return err
		}
		_, err := conn.Read(b)
		return err
	})
	q.clients = append(q.clients, conn)
	own := netip.MustParseAddrPort(conn.LocalAddr().String())
	q.last = connection{fmt.Sprint(client.Name, " to ", server.Name, " ", to), packet{peer, at}, packet{to, own}}
	q.receive(client.Host, own.Addr())
	q.add("the server, of "+q.last.name, server.Host, q.last.byServer, allowed)
	q.add("the client, of "+q.last.name, client.Host, q.last.byClient, allowed)
	return q.last
}

// add adds the errors that somebody sends about a packet.
func (q *quoting) add(name string, by host.Host, about packet, allowed bool) {
	q.Helper()
	conn := q.receive(by, about.to.Addr())
	kinds := map[string][2]byte{"port unreachable": {3, 3}, "fragmentation needed": {3, 4}}
	if about.to.Addr().Is6() {
		kinds = map[string][2]byte{"port unreachable": {1, 4}, "packet too big": {2, 0}}
	}
	for what, kind := range kinds {
		q.errors = append(q.errors, icmpError{fmt.Sprint(what, " by ", name), conn, about, kind, allowed})
	}
}

// receive notes the errors that come to a host, and returns the socket.
func (q *quoting) receive(h host.Host, addr netip.Addr) net.PacketConn {
	q.Helper()
	key := socketOf{h.Name, netstate.FamilyOf(addr)}
	if q.sockets[key] != nil {
		return q.sockets[key]
	}
	network := map[netstate.Family]string{netstate.IPv4: "ip4:icmp", netstate.IPv6: "ip6:ipv6-icmp"}[key.family]
	if err := h.Do(func() (err error) {
		q.sockets[key], err = net.ListenPacket(network, "")
		return err
	}); err != nil {
		q.Fatal(err)
	}
	conn := q.sockets[key]
	q.Cleanup(func() { conn.Close() })
	go func() {
		for b := make([]byte, 4096); ; {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			if _, name, ok := bytes.Cut(b[:n], []byte("quoted: ")); ok {
				q.mu.Lock()
				q.came[string(name)] = true
				q.mu.Unlock()
			}
		}
	}()
	return conn
}

// expect sends all errors until those that pass have come, and fails if others do.
func (q *quoting) expect(when string, passes func(icmpError) bool) {
	q.Helper()
	missing := func() (all []string) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, e := range q.errors {
			if passes(e) && !q.came[e.name] {
				all = append(all, e.name)
			}
		}
		return all
	}
	testwait.Pause(q.T, 100*time.Millisecond, "what was under way comes, too")
	q.mu.Lock()
	clear(q.came)
	q.mu.Unlock()
	testwait.Nil(q.T, when, func() error {
		for _, conn := range q.clients {
			_, _ = conn.Write([]byte("keeps the entry")) // or an error that has come
		}
		for _, e := range q.errors {
			if _, err := e.by.WriteTo(e.message(), &net.IPAddr{IP: e.about.from.Addr().AsSlice()}); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
		}
		if left := missing(); len(left) > 0 {
			return fmt.Errorf("%d of %d errors have not come, such as %s", len(left), len(q.errors), left[0])
		}
		return nil
	})
	testwait.Pause(q.T, 300*time.Millisecond, "the others would have come")
	q.mu.Lock()
	defer q.mu.Unlock()
	var wrong []string
	for _, e := range q.errors {
		if !passes(e) && q.came[e.name] {
			wrong = append(wrong, e.name)
		}
	}
	if slices.Sort(wrong); len(wrong) > 0 {
		q.Errorf("%s: %d of %d errors come that are about denied connections, such as\n%s\n%s", when, len(wrong), len(q.errors),
			wrong[0], wrong[len(wrong)-1])
	}
}

// message returns an ICMP message: the type, the code, a checksum, four bytes that may have an MTU, and the packet.
func (e icmpError) message() []byte {
	const mtu = 1400
	m := []byte{e.kind[0], e.kind[1], 0, 0, 0, 0, mtu >> 8, mtu & 0xff}
	data := []byte("quoted: " + e.name)
	size := uint16(8 + len(data))
	udp := binary.BigEndian.AppendUint16(nil, e.about.from.Port())
	udp = binary.BigEndian.AppendUint16(udp, e.about.to.Port())
	udp = append(binary.BigEndian.AppendUint16(udp, size), 0, 0)
	var ip []byte
	from, to := e.about.from.Addr().AsSlice(), e.about.to.Addr().AsSlice()
	if e.about.to.Addr().Is6() {
		ip = append([]byte{0x60, 0, 0, 0, byte(size >> 8), byte(size), 17, 63}, append(from, to...)...)
		return slices.Concat(m, ip, udp, data) // the kernel makes the checksum
	}
	ip = append([]byte{0x45, 0, byte((size + 20) >> 8), byte(size + 20), 0, 1, 0x40, 0, 63, 17, 0, 0}, append(from, to...)...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	m = slices.Concat(m, ip, udp, data)
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	return m
}
