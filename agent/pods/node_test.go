package pods

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
)

var twill string // the plugin's binary

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	sweepCrashedRuns()
	dir, err := os.MkdirTemp("", "twr-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	twill = filepath.Join(dir, "twill")
	cmd := exec.Command("go", "build", "-o", dir, "github.com/twill-net/twill/cmd/twill", "github.com/containernetworking/plugins/plugins/meta/portmap")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build twill: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// sweepCrashedRuns removes the namespaces (twr-<pid>-<number>) of test processes that are gone.
func sweepCrashedRuns() {
	paths, _ := filepath.Glob("/run/netns/twr-*-*")
	for _, path := range paths {
		if _, err := os.Stat("/proc/" + strings.Split(filepath.Base(path), "-")[1]); os.IsNotExist(err) {
			_ = host.Host{Name: filepath.Base(path)}.Delete()
		}
	}
}

var namespaces atomic.Int32

func newNamespace(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root: network namespaces are the real thing that is tested")
		}
		t.Skip("needs root")
	}
	name := fmt.Sprintf("twr-%d-%d", os.Getpid(), namespaces.Add(1))
	ns := host.Host{Name: name}
	if err := ns.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Delete() })
	return ns.Path()
}

// onThread calls f on a thread of its own, in the network namespace at path.
func onThread(t *testing.T, path string, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		space, err := ns.GetNS(path)
		if err == nil {
			defer space.Close()
			err = space.Set()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// node is a machine with a lease.
type node struct {
	*testing.T
	ns, dir string
}

func newNode(t *testing.T) *node {
	n := &node{t, newNamespace(t), t.TempDir()}
	env := "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:10:244::/48\n" +
		"FLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	if err := os.WriteFile(filepath.Join(n.dir, "subnet.env"), []byte(env), 0o644); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) store() string { return filepath.Join(n.dir, "networks", "cbr0") }

// add wires a pod with the real plugin; no runtime is left that knows of it.
func (n *node) add(id, pod string) { n.Helper(); n.addWith(id, pod, "") }

// addWith gives the plugin more of a config than it needs.
func (n *node) addWith(id, pod, config string) {
	n.Helper()
	c := exec.Command(twill)
	c.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + id, "CNI_NETNS=" + pod, "CNI_IFNAME=eth0", "CNI_PATH=" + filepath.Dir(twill), "PATH=" + os.Getenv("PATH")}
	c.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.0.0","name":"cbr0","type":"twill","subnetFile":%q,"ipam":{"dataDir":%q}%s}`,
		filepath.Join(n.dir, "subnet.env"), filepath.Join(n.dir, "networks"), config))
	var out bytes.Buffer
	c.Stdout = &out
	onThread(n.T, n.ns, c.Start)
	if err := c.Wait(); err != nil {
		n.Fatalf("ADD %s: %v: %s", id, err, out.Bytes())
	}
}

// addLikeFlannel wires a pod as flannel's chain does: a pair with a random name on the bridge, a
// reservation by host-local.
func (n *node) addLikeFlannel(id, pod, addr string) {
	n.Helper()
	n.reserve(id, addr)
	n.plug("veth"+id, pod, "cni0")
	onThread(n.T, pod, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(addr), Mask: net.CIDRMask(24, 32)}})
	})
}

// plug makes the pair of a pod, on the bridge of that name.
func (n *node) plug(name, pod, bridge string) {
	n.Helper()
	onThread(n.T, n.ns, func() error {
		peer, err := ns.GetNS(pod)
		if err != nil {
			return err
		}
		defer peer.Close()
		master, err := netlink.LinkByName(bridge)
		if err != nil {
			if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}); err != nil {
				return err
			}
			master, err = netlink.LinkByName(bridge)
		}
		if err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: master.Attrs().Index},
			PeerName: "eth0", PeerNamespace: netlink.NsFd(peer.Fd())})
	})
}

// dropAddresses takes all addresses off a pod's interface, as gVisor does when it takes over the interface.
func (n *node) dropAddresses(pod string) {
	n.Helper()
	onThread(n.T, pod, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		for _, a := range addrs {
			err = errors.Join(err, netlink.AddrDel(link, &a))
		}
		return err
	})
}

// removeNamespace removes its devices first: the kernel takes as long as it likes for those of a namespace that is gone.
func removeNamespace(t *testing.T, path string) {
	t.Helper()
	onThread(t, path, func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if l.Type() == "veth" {
				err = errors.Join(err, netlink.LinkDel(l))
			}
		}
		return err
	})
	if err := (host.Host{Name: filepath.Base(path)}).Delete(); err != nil {
		t.Fatal(err)
	}
}

func (n *node) reserve(id, addr string) { n.Helper(); n.reserveIn("cbr0", id, addr) }

// reserveIn reserves under a network's name, as host-local does.
func (n *node) reserveIn(network, id, addr string) {
	n.Helper()
	s, err := disk.New(network, filepath.Join(n.dir, "networks"))
	if err != nil {
		n.Fatal(err)
	}
	defer s.Close()
	if ok, err := s.Reserve(id, "eth0", netip.MustParseAddr(addr).AsSlice(), "0"); !ok || err != nil {
		n.Fatal(ok, err)
	}
}

// owners is who has reservations, in order.
func (n *node) owners() string {
	n.Helper()
	paths, err := filepath.Glob(filepath.Join(n.store(), "[0-9f]*"))
	if err != nil {
		n.Fatal(err)
	}
	all := map[string]bool{}
	for _, p := range paths {
		content, err := os.ReadFile(p)
		if os.IsNotExist(err) { // freed meanwhile
			continue
		}
		id, _, _ := strings.Cut(string(content), "\r\n")
		all[id] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), " ")
}

func (n *node) reclaimer(grace time.Duration) *Reclaimer {
	return New(Config{Store: n.store(), Bridge: "cni0", Plugins: filepath.Dir(twill), Lease: lease, Grace: grace, Every: 10 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
}

// lease is the node's.
func lease() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.244.1.1/24"), netip.MustParsePrefix("fd00:10:244:1::1/64")}
}

func (n *node) run(f func() error) { n.Helper(); onThread(n.T, n.ns, f) }

// someOfEach is a node with pods of both kinds, living and gone.
func someOfEach(t *testing.T) *node {
	n := newNode(t)
	n.add("live", newNamespace(t))
	n.addLikeFlannel("flannel", newNamespace(t), "10.244.1.90")
	gone, gone2 := newNamespace(t), newNamespace(t)
	n.add("gone", gone)
	n.addLikeFlannel("flannelgone", gone2, "10.244.1.200")
	removeNamespace(t, gone)
	removeNamespace(t, gone2)
	n.waitVeths(2)
	return n
}

// waitVeths waits until so many ends of veth pairs are in the node.
func (n *node) waitVeths(want int) {
	n.Helper()
	testwait.Nil(n, fmt.Sprintf("the node has %d ends of veth pairs", want), func() error {
		veths := 0
		n.run(func() error {
			links, err := netlink.LinkList()
			if errors.Is(err, netlink.ErrDumpInterrupted) {
				veths = -1 // something came or went meanwhile
				return nil
			}
			for _, l := range links {
				if l.Type() == "veth" {
					veths++
				}
			}
			return err
		})
		if veths != want {
			return fmt.Errorf("it has %d", veths)
		}
		return nil
	})
}
