//go:build soak

package guest

import (
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
)

// The router says each beat that it is one, for some beats; so long lives its prefix, too.
const beat, lifetime = time.Second, 4

// advertised gives a NIC whose IPv6 address and default route come by router advertisements.
func (g *guest) advertised() string {
	pod, err := g.node.AddNamespace("radv")
	g.must(err)
	g.run("ip link add ra0 type veth peer name eth0 netns "+pod.Host.Name, "sysctl -qw net.ipv6.conf.ra0.accept_dad=0")
	for _, c := range [][]string{{"sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0"}, {"ip", "link", "set", "eth0", "up"},
		{"ip", "addr", "add", "2001:db8:7::1/64", "dev", "eth0", "nodad"}} {
		_, err := pod.Exec(g.Context(), c...)
		g.must(err)
	}
	g.run("ip link set ra0 up")
	g.advertise(pod.Host)
	g.beat = lifetime + 2
	g.probe("the router that advertises itself", g.node.Host, netip.MustParseAddr("2001:db8:7::1"))
	return "2001:db8:7::/64"
}

// advertise sends an advertisement each beat until the test ends: a default route, and the prefix 2001:db8:7::/64.
func (g *guest) advertise(router host.Host) {
	var fd int
	g.must(router.Do(func() (err error) {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, i.Index)
	}))
	message := []byte{134, 0, 0, 0, 64, 0, 0, lifetime, 0, 0, 0, 0, 0, 0, 0, 0, // RFC 4861, 4.2; the prefix, 4.6.2
		3, 4, 64, 0xc0, 0, 0, 0, lifetime, 0, 0, 0, lifetime, 0, 0, 0, 0, 0x20, 0x01, 0x0d, 0xb8, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	done := make(chan struct{})
	g.Cleanup(func() {
		<-done
		unix.Close(fd)
	})
	go func() {
		defer close(done)
		for g.Context().Err() == nil {
			_ = unix.Sendto(fd, message, 0, &unix.SockaddrInet6{Addr: [16]byte{0xff, 2, 15: 1}}) // the next one may pass
			time.Sleep(beat)
		}
	}()
}
