package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// withoutOffloads switches off all that a device does for the kernel: checksums, and large packets on both ways.
func (s *space) withoutOffloads(dev string) {
	s.t.Helper()
	var failed error
	s.do(func() {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			failed = err
			return
		}
		defer unix.Close(fd)
		for _, command := range []uint32{unix.ETHTOOL_SRXCSUM, unix.ETHTOOL_STXCSUM, unix.ETHTOOL_SSG, unix.ETHTOOL_STSO,
			unix.ETHTOOL_SGSO, unix.ETHTOOL_SGRO} {
			data := struct{ command, value uint32 }{command: command} // struct ethtool_value
			request := struct {                                       // struct ifreq
				name [unix.IFNAMSIZ]byte
				data unsafe.Pointer
				_    [16]byte
			}{data: unsafe.Pointer(&data)}
			copy(request.name[:unix.IFNAMSIZ-1], dev)
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
			if errno != 0 && errno != unix.EOPNOTSUPP { // not every device has all
				failed = errors.Join(failed, fmt.Errorf("%s: %#x: %w", dev, command, errno))
			}
		}
	})
	if failed != nil {
		s.t.Fatal(failed)
	}
}

// TestWithoutOffloads: data is intact where no device sums up packets or cuts them.
func TestWithoutOffloads(t *testing.T) {
	for _, mode := range modes {
		a, b := fast(t, mode)
		for _, n := range []*node{a, b} {
			for _, dev := range []string{"eth0", "flannel.1", "flannel-v6.1", "cni0", "pod"} {
				n.withoutOffloads(dev)
			}
			n.pod.withoutOffloads("eth0")
		}
		for _, addr := range []netip.Addr{b.pod4(), b.pod6()} {
			t.Run(fmt.Sprintf("%s/%s", mode, addr), func(t *testing.T) {
				before := a.fastPackets(mode)
				client, server := connection(t, a.pod, b.pod, addr)
				transfer(t, client, server, 20<<20)
				transfer(t, server, client, 20<<20)
				if n := a.fastPackets(mode) - before; n < 20000 {
					t.Errorf("%d packets were fast; %s", n, a.counted())
				}
				e := newEcho(t, a.pod, b.pod, addr)
				e.assured()
				e.must(1000)
			})
		}
	}
}

// TestTunnelsOfPods: data is intact that pods send through a tunnel of their own, whose packets the kernel can put into
// no second one if it has not made the first.
func TestTunnelsOfPods(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			a, b := fast(t, mode)
			for _, ends := range [][2]*node{{a, b}, {b, a}} {
				pod := ends[0].pod
				pod.ip("link add inner mtu 1350 type vxlan id 9 local %s remote %s dev eth0 srcport 4789 4790 dstport 4789",
					ends[0].pod4(), ends[1].pod4())
				pod.ip("addr add %s/24 dev inner", ends[0].addr("172.31.0.%d"))
				pod.ip("link set inner up")
			}
			to := b.addr("172.31.0.%d")
			e := newEcho(t, a.pod, b.pod, to)
			e.assured() // and so is the tunnel's flow
			client, server := connection(t, a.pod, b.pod, to)
			transfer(t, client, server, 20<<20)
			transfer(t, server, client, 20<<20)
			e.must(1000)
			t.Log(a.counted())
		})
	}
}

// TestCongestion: a mark that a router on the way puts into the tunnel's header reaches the pod (RFC 6040), and a packet
// that cannot carry one is lost instead.
func TestCongestion(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	b.command("nft", "add table netdev congestion; add chain netdev congestion router "+
		"{ type filter hook ingress device eth0 priority 0; }; add rule netdev congestion router udp dport 8472 ip ecn set ce")
	b.pod.command("nft", "add table inet t; add counter inet t marked; add chain inet t i { type filter hook input priority 0; }; "+
		"add rule inet t i ip ecn ce counter name marked; add rule inet t i ip6 ecn ce counter name marked")
	for _, addr := range []netip.Addr{b.pod4(), b.pod6()} {
		e := newEcho(t, a.pod, b.pod, addr)
		const ect0 = 2
		e.trafficClass(ect0)
		e.assured()
		b.pod.command("nft", "reset", "counters")
		before := b.count(netstate.ToPod, "encap")
		for range 10 {
			e.must(100)
		}
		var marked int
		text := b.pod.command("nft", "list", "counter", "inet", "t", "marked")
		if _, err := fmt.Sscanf(text[indexOf(text, "packets"):], "packets %d", &marked); err != nil || marked != 10 {
			t.Errorf("%s: %d of 10 packets are marked, %v", addr, marked, err)
		}
		if n := b.count(netstate.ToPod, "encap") - before; n != 10 {
			t.Errorf("%s: %d of 10 packets were fast; %s", addr, n, b.counted())
		}
		e.trafficClass(0)
		if e.once(100, 2*time.Second) {
			t.Errorf("%s: a packet that cannot be marked arrived", addr)
		}
	}
}
