package fastpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// parameters is struct settings of bpf/maps.h.
type parameters struct {
	SkipMark               uint32
	TCPSeconds, UDPSeconds uint32
	HZ                     uint32
	PortMin, PortMax       uint32
}

// The kernel's parameters that programs use.
const (
	tcpTimeout = "net/netfilter/nf_conntrack_tcp_timeout_established"
	udpTimeout = "net/netfilter/nf_conntrack_udp_timeout_stream"
	portRange  = "net/ipv4/ip_local_port_range"
)

// readParameters reads all of parameters but SkipMark.
func readParameters() (p parameters, err error) {
	var tick unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &tick); err != nil {
		return p, fmt.Errorf("read the length of a tick: %w", err)
	}
	p.HZ = uint32(math.Round(1e9 / float64(tick.Nano())))
	for name, fields := range map[string][]*uint32{tcpTimeout: {&p.TCPSeconds}, udpTimeout: {&p.UDPSeconds},
		portRange: {&p.PortMin, &p.PortMax}} {
		text, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			return p, fmt.Errorf("read a kernel parameter: %w", err)
		}
		values := strings.Fields(string(text))
		if len(values) != len(fields) {
			return p, fmt.Errorf("%s is %q: want %d numbers", name, values, len(fields))
		}
		for i, f := range fields {
			n, err := strconv.ParseUint(values[i], 10, 32)
			if err != nil {
				return p, fmt.Errorf("%s is %q: want numbers", name, values)
			}
			*f = uint32(n)
		}
	}
	// A program counts them in milliseconds and in ticks, in 32 bits with a sign.
	longest := uint32(math.MaxInt32) / max(p.HZ, 1000)
	p.TCPSeconds, p.UDPSeconds = min(p.TCPSeconds, longest), min(p.UDPSeconds, longest)
	return p, nil
}

// differences says what of p is older than what the kernel has now.
func (p parameters) differences(now parameters) (all words) {
	add := func(name string, have, now uint32) {
		all.add(have != now, "%s=%d (the kernel has %d)", name, have, now)
	}
	add(tcpTimeout, p.TCPSeconds, now.TCPSeconds)
	add(udpTimeout, p.UDPSeconds, now.UDPSeconds)
	add("HZ", p.HZ, now.HZ)
	add(portRange+"[0]", p.PortMin, now.PortMin)
	add(portRange+"[1]", p.PortMax, now.PortMax)
	return all
}

// needConntrack makes the kernel load conntrack if it is a module, and fails if there is none.
func needConntrack() error {
	const stats, v0 = 1<<8 | 5, 0 // IPCTNL_MSG_CT_GET_STATS
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err == nil {
		r := nl.NewNetlinkRequest(stats, 0)
		r.AddRawData([]byte{unix.AF_UNSPEC, v0, 0, 0})
		err = s.Send(r) // the module is there when that returns; the answer does not matter
		s.Close()
	}
	if _, missing := os.Stat("/proc/sys/" + tcpTimeout); missing != nil {
		return fmt.Errorf("%w: this kernel has no conntrack: %w", ErrUnavailable, errors.Join(err, missing))
	}
	return nil
}

// now is CLOCK_MONOTONIC, which programs compare with.
func now() (uint64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return uint64(t.Nano()), nil
}

// names maps devices and their indices, as the kernel has them at the moment of a question.
type names struct{ fd int } // a socket in the namespace

// request is struct ifreq with a number.
type request struct {
	name  [unix.IFNAMSIZ]byte
	index int32
	_     [20]byte
}

func (n names) ask(what uintptr, r *request) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(n.fd), what, uintptr(unsafe.Pointer(r)))
	if errno != 0 {
		return errno
	}
	return nil
}

// index returns the index of a device.
func (n names) index(name string) (uint32, error) {
	var r request
	if len(name) >= len(r.name) {
		return 0, fmt.Errorf("the name of a device has at most 15 letters, %q has %d", name, len(name))
	}
	copy(r.name[:], name)
	if err := n.ask(unix.SIOCGIFINDEX, &r); err != nil {
		return 0, fmt.Errorf("look for the device %s: %w", name, err)
	}
	return uint32(r.index), nil
}

// name returns the name of the device with an index, and false if there is none.
func (n names) name(index uint32) (string, bool) {
	r := request{index: int32(index)}
	if n.ask(unix.SIOCGIFNAME, &r) != nil {
		return "", false
	}
	return unix.ByteSliceToString(r.name[:]), true
}

// ipsec returns how many IPsec policies the namespace has.
func ipsec(s *nl.SocketHandle) (n uint32, err error) {
	const getInfo, newInfo, info = 0x25, 0x24, 1 // XFRM_MSG_GETSPDINFO, XFRM_MSG_NEWSPDINFO, XFRMA_SPD_INFO
	r := nl.NewNetlinkRequest(getInfo, 0)
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_XFRM: s}
	r.AddRawData(make([]byte, 4))
	messages, err := r.Execute(unix.NETLINK_XFRM, newInfo)
	if err != nil {
		return 0, fmt.Errorf("count the IPsec policies: %w", err)
	}
	for _, m := range messages {
		attrs, err := nl.ParseRouteAttr(m[4:])
		if err != nil {
			return 0, fmt.Errorf("count the IPsec policies: %w", err)
		}
		for _, a := range attrs { // struct xfrmu_spdinfo: in, out, forward; then those of sockets
			for i := 0; a.Attr.Type == info && i < 3 && len(a.Value) >= 4*i+4; i++ {
				n += binary.NativeEndian.Uint32(a.Value[4*i:])
			}
		}
	}
	return n, nil
}
