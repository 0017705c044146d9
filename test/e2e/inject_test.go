package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

// injectNetworks are the networks of pods by the backend. In some the nodes' own LAN lies within.
var injectNetworks = map[string]string{
	"vxlan":            `"Network":"10.244.0.0/16","IPv6Network":"fd00:244::/56"`,
	"udp":              `"Network":"10.244.0.0/16","IPv6Network":"fd00:244::/56"`,
	"vxlan lan":        `"Network":"192.168.0.0/16","IPv6Network":"fd33::/48"`,
	"vxlan lan direct": `"Network":"192.168.0.0/16","IPv6Network":"fd33::/48"`,
	"udp lan":          `"Network":"192.168.0.0/16","IPv6Network":"fd33::/48"`,
}

// TestInject: what a pod wraps as nodes do reaches no other pod, by whatever address of a node it tries.
func TestInject(t *testing.T) {
	t.Parallel()
	for mode, clear := range map[string][]string{
		"nftables": {"nft flush chain ip flannel-ipv4 guard-input", "nft flush chain ip flannel-ipv4 guard-forward",
			"nft flush chain ip flannel-ipv4 guard-source"},
		"iptables": {"iptables -t mangle -F TWILL-INPUT", "iptables -t mangle -F TWILL-FORWARD"},
	} {
		for name, network := range injectNetworks {
			backend, _, _ := strings.Cut(name, " ")
			t.Run(name+"/"+mode, func(t *testing.T) {
				conf := fmt.Sprintf(`{%s,"EnableIPv6":true,"EnableNFTables":%t,"Backend":{"Type":%q,"DirectRouting":%t}}`,
					network, mode == "nftables", backend, strings.HasSuffix(name, "direct"))
				l := labtest.Up(t, lab.Spec{Name: "inject" + strings.ReplaceAll(name, " ", "") + mode[:1], Backend: backend, Family: lab.Dual,
					Store: lab.File, Nodes: 2, Pods: 2, NetConf: json.RawMessage(conf)})
				c := cluster{t, l}
				for _, at := range c.targets() {
					if c.injected(at, 3) {
						c.Errorf("a forged packet was delivered by way of %s", at)
					}
				}
				c.nested()
				if backend == "udp" {
					return // its agent looks at what it is sent, too
				}
				c.unguard(clear)
				for _, at := range c.targets() {
					what := fmt.Sprintf("a forged packet is delivered by way of %s without the rules, else the test proves nothing", at)
					testwait.Until(c, what, func() bool { return c.injected(at, 1) })
				}
			})
		}
	}
}

// unguard takes the rules away, of both families, and the agents that would put them back.
func (c cluster) unguard(clear []string) {
	for _, n := range c.lab.Nodes() {
		c.must(n.KillAgent())
		for _, line := range clear {
			six := strings.NewReplacer("iptables", "ip6tables", "ip flannel-ipv4", "ip6 flannel-ipv6").Replace(line)
			for _, l := range []string{line, six} {
				_, err := n.Exec(c.Context(), strings.Fields(l)...)
				c.must(err)
			}
		}
	}
}

// target is an address of a node at which it may take wrapped packets.
type target struct {
	node  *lab.Node
	addr  netip.Addr
	spoof bool // the pod may use raw sockets, and says that it is another machine of the underlay
}

func (t target) String() string {
	return fmt.Sprintf("%s of %s, from an address that is no pod's: %t", t.addr, t.node.Name, t.spoof)
}

// targets are the addresses of the underlay, of the bridge and of the overlay's device.
func (c cluster) targets() []target {
	var all []target
	for _, n := range c.lab.Nodes() {
		addrs := n.Underlay()
		for _, s := range n.Subnets() {
			addrs = append(addrs, s.Addr().Next(), s.Addr())
		}
		for _, a := range addrs {
			all = append(all, target{node: n, addr: a})
			if a.Is4() {
				all = append(all, target{n, a, true})
			}
		}
	}
	return all
}

// injected has the first pod of the first node send a packet that says that it comes from another pod, to the last pod
// of the target's node, and reports whether it arrived.
func (c cluster) injected(at target, tries int) bool {
	c.Helper()
	target := at.node.Pods()[1]
	forged := netip.AddrPortFrom(c.lab.Nodes()[1].Pods()[0].Addr(netstate.IPv4), 99)
	listener := c.listen(target, netip.AddrPortFrom(target.Addr(netstate.IPv4), 7000))
	defer listener.Close()
	to := netip.AddrPortFrom(target.Addr(netstate.IPv4), 7000)
	packet, port := datagram(forged, to, "forged"), uint16(8285)
	if c.lab.Spec().Backend == "vxlan" {
		packet, port = c.vxlan(at, packet), 8472
	}
	for range tries {
		c.send(at, port, packet)
		if c.heard(listener, 50*time.Millisecond) {
			return true
		}
	}
	return false
}

// send sends a datagram from the first pod of the first node.
func (c cluster) send(at target, port uint16, payload []byte) {
	c.Helper()
	to := netip.AddrPortFrom(at.addr, port)
	if !at.spoof {
		conn, err := c.pod(1).Dial(c.Context(), "udp", to.String())
		c.must(err)
		defer conn.Close()
		_, err = conn.Write(payload)
		c.must(err)
		return
	}
	c.must(c.pod(1).Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		from := netip.AddrPortFrom(netip.MustParseAddr("192.168.33.77"), port)
		return unix.Sendto(fd, datagram(from, to, string(payload)), 0, &unix.SockaddrInet4{Addr: at.addr.As4()})
	}))
}

func (c cluster) listen(p *lab.Pod, at netip.AddrPort) (conn *net.UDPConn) {
	c.Helper()
	testwait.Nil(c, "a socket, since one that was closed lives on in a program that another test just starts", func() error {
		return p.Do(func() (err error) {
			conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			return err
		})
	})
	return conn
}

// heard reports whether a packet comes within a while.
func (c cluster) heard(conn *net.UDPConn, within time.Duration) bool {
	c.must(conn.SetReadDeadline(time.Now().Add(within)))
	_, err := conn.Read(make([]byte, 99))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.Fatal(err)
	}
	return err == nil
}

// datagram is an IPv4 packet with a UDP datagram, which needs no checksum of its own.
func datagram(from, to netip.AddrPort, text string) []byte {
	p := []byte{0x45, 0, 0, byte(28 + len(text)), 0, 0, 0, 0, 64, 17, 0, 0}
	p = append(append(p, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum+sum>>16))
	p = binary.BigEndian.AppendUint16(p, from.Port())
	p = binary.BigEndian.AppendUint16(p, to.Port())
	return append(p, append([]byte{0, byte(8 + len(text)), 0, 0}, text...)...)
}

// vxlan wraps a packet for the device of the target's family.
func (c cluster) vxlan(at target, packet []byte) []byte {
	device := c.carrier().devices[netstate.FamilyOf(at.addr)]
	out, err := at.node.Exec(c.Context(), "ip", "-o", "link", "show", device)
	c.must(err)
	_, rest, _ := strings.Cut(out, "link/ether ")
	out, _, _ = strings.Cut(rest, " ")
	mac, err := net.ParseMAC(out)
	c.must(err)
	frame := []byte{8, 0, 0, 0, 0, 0, 1, 0}
	frame = append(append(frame, mac...), 2, 0, 0, 0, 0, 9, 8, 0)
	return append(frame, packet...)
}

// nested: pods that carry a network of their own on the same port reach each other.
func (c cluster) nested() {
	c.Helper()
	for _, f := range netstate.Families {
		to := netip.AddrPortFrom(c.pod(2).Addr(f), 8472)
		listener := c.listen(c.pod(2), to)
		conn, err := c.pod(1).Dial(c.Context(), "udp", to.String())
		c.must(err)
		_, err = conn.Write(bytes.Repeat([]byte{8}, 60))
		c.must(err)
		if !c.heard(listener, testwait.Limit) {
			c.Errorf("a pod's datagram to port 8472 of another pod, %s, does not arrive", to)
		}
		c.must(errors.Join(conn.Close(), listener.Close()))
	}
}
