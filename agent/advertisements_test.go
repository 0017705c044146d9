package agent

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/internal/testns"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/subnet"
)

// router sends router advertisements from a namespace of its own.
type router struct {
	*testing.T
	pid     int
	sockets map[string]int
}

// newRouter moves the test's thread into a new namespace, and makes a router in another one.
func newRouter(t *testing.T) *router {
	testns.Enter(t)
	process := exec.CommandContext(t.Context(), "sleep", "600")
	process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = process.Process.Kill(), process.Wait() })
	return &router{T: t, pid: process.Process.Pid, sockets: map[string]int{}}
}

func (r *router) run(command string) string {
	r.Helper()
	out, err := exec.CommandContext(r.Context(), "sh", "-ec", command).CombinedOutput()
	if err != nil {
		r.Fatalf("%s: %v: %s", command, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *router) inside(command string) {
	r.Helper()
	r.run(fmt.Sprintf("nsenter -n -t %d %s", r.pid, command))
}

// nic makes a device of the host, whose other end is the router's.
func (r *router) nic(dev string) {
	r.Helper()
	r.run(fmt.Sprintf("ip link add %s type veth peer name %s netns %d", dev, dev, r.pid))
	r.inside(fmt.Sprintf("sysctl -qw net.ipv6.conf.%s.accept_dad=0", dev))
	r.run("sysctl -qw net.ipv6.conf." + dev + ".accept_dad=0")
	r.inside("ip link set " + dev + " up")
	r.run("ip link set " + dev + " up")
	r.sockets[dev] = r.socket(dev)
}

// socket is one in the router's namespace that sends on one device what routers alone send.
func (r *router) socket(dev string) int {
	r.Helper()
	opened := make(chan error, 1)
	fd := -1
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends in the router's namespace
		opened <- func() error {
			ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", r.pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(ns)
			if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
				return err
			}
			i, err := net.InterfaceByName(dev)
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
		}()
	}()
	if err := <-opened; err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { unix.Close(fd) })
	return fd
}

// advertise sends one advertisement: a default route for as many seconds, and the subnet 2001:db8:N::/64. A device that
// has no address or no route for multicast yet, which the kernel adds when it is up, sends nothing.
func (r *router) advertise(dev string, seconds, n byte) {
	r.Helper()
	message := []byte{134, 0, 0, 0, 64, 0, 0, seconds, 0, 0, 0, 0, 0, 0, 0, 0,
		3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0, 0x20, 0x01, 0x0d, 0xb8, 0, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	all := unix.SockaddrInet6{Addr: [16]byte{0xff, 2, 15: 1}}
	err := unix.Sendto(r.sockets[dev], message, 0, &all)
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENETUNREACH) {
		r.Fatal(err)
	}
}

// follows advertises until the device has the default route, or has it no more.
func (r *router) follows(dev string, n byte) {
	r.Helper()
	for _, seconds := range []byte{0, 200, 0, 200} {
		testwait.Until(r.T, fmt.Sprintf("%s has a default route for %d seconds", dev, seconds), func() bool {
			r.advertise(dev, seconds, n)
			return r.hasDefault(dev) == (seconds > 0) && r.run(fmt.Sprintf("ip -6 addr show dev %s to 2001:db8:%d::/64", dev, n)) != ""
		})
	}
}

func (r *router) hasDefault(dev string) bool {
	return r.run("ip -6 route show default proto ra dev "+dev) != ""
}

// TestRouterAdvertisementsStay: a host that begins to forward for pods goes on being configured by router advertisements
// on the devices that were, without a gap, and on those that come later.
func TestRouterAdvertisementsStay(t *testing.T) {
	r := newRouter(t)
	r.run("ip link set lo up; sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.default.forwarding=0 net.ipv6.conf.default.accept_ra=1")
	for _, dev := range []string{"wan0", "off0"} {
		r.nic(dev)
	}
	r.run("sysctl -qw net.ipv6.conf.off0.accept_ra=0; ip link add cni0 type bridge; ip link set cni0 alias twill")
	r.follows("wan0", 7)
	k, err := kernel.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	reconcile := func() {
		t.Helper()
		interfaces, err := k.Interfaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		node, err := Planner{}.Facts(interfaces, backend.Node{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := backend.Base(backend.BaseConfig{}, node, subnet.Lease{Stacks: []subnet.Stack{{Subnet: prefixes("fd00:1::/64")[0]}}})
		have, err := k.Observe(t.Context(), want)
		if err == nil {
			plan := netstate.Diff(want, have)
			err = k.Apply(t.Context(), slices.DeleteFunc(plan, func(c netstate.Change) bool { return c.Want == nil })) // cni0 stays
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	reconcile()
	if got := r.run("sysctl -n net.ipv6.conf.all.forwarding"); got != "1" {
		t.Errorf("the host forwards: %s", got)
	}
	if !r.hasDefault("wan0") {
		t.Error("wan0 lost its default route when forwarding went on")
	}
	r.follows("wan0", 7)
	for dev, want := range map[string]string{"off0": "0", "lo": "1", "cni0": "1"} {
		if got := r.run("sysctl -n net.ipv6.conf." + dev + ".accept_ra"); got != want {
			t.Errorf("accept_ra of %s is %s, want %s: nothing changes who takes advertisements", dev, got, want)
		}
	}
	r.nic("wan1")
	r.follows("wan1", 8)
	reconcile()
	r.follows("wan0", 7)
	r.follows("wan1", 8)

	// An administrator who made a router of the host before wants no advertisements.
	r.run("sysctl -qw net.ipv6.conf.all.forwarding=1")
	r.nic("wan2")
	reconcile()
	if got := r.run("sysctl -n net.ipv6.conf.wan2.accept_ra"); got != "1" {
		t.Errorf("accept_ra of wan2 is %s, want 1, as it was", got)
	}
}
