package pods

import (
	"bytes"
	"context"
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
	"github.com/vishvananda/netns"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/twill-net/twill/lab/host"
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

// onThread calls f on a thread of its own, in the network namespace at path if there is one.
func onThread(t *testing.T, path string, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if path != "" {
			ns, err := netns.GetFromPath(path)
			if err == nil {
				defer ns.Close()
				err = netns.Set(ns)
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- f()
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

// addLikeFlannel wires a pod as flannel's chain does: a pair with a random name on the bridge, a reservation by
// host-local.
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
		ns, err := netns.GetFromPath(pod)
		if err != nil {
			return err
		}
		defer ns.Close()
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
			PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)})
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

func removeNamespace(t *testing.T, path string) {
	t.Helper()
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

// waitVeths waits for the kernel, which removes a namespace's devices a little later than the namespace.
func (n *node) waitVeths(want int) {
	n.Helper()
	veths := 0
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		n.run(func() error {
			links, err := netlink.LinkList()
			if veths = 0; errors.Is(err, netlink.ErrDumpInterrupted) {
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
		if veths == want {
			return
		}
	}
	n.Fatalf("the node has %d ends of veth pairs, want %d", veths, want)
}

const all = "flannel flannelgone gone live"

// TestLook frees what pods that are gone have left, after the grace period and not before, and never an address of a
// pod that lives without any runtime.
func TestLook(t *testing.T) {
	n := someOfEach(t)
	r := n.reclaimer(time.Hour)
	n.run(func() error { return r.Look(context.Background()) })
	if got := n.owners(); got != all {
		t.Fatalf("within the grace period reservations of %q are left, want all: %q", got, all)
	}
	r.Grace = 0
	n.run(func() error { return r.Look(context.Background()) })
	if got := n.owners(); got != "flannel live" {
		t.Errorf("reservations of %q are left, want those of the living: flannel, live", got)
	}
	index, err := os.ReadDir(filepath.Join(n.store(), ".twill"))
	if err != nil || len(index) != 2 {
		t.Errorf("the index holds %v, %v; want two entries of the living pod", index, err)
	}
	n.add("next", newNamespace(t))
}

// TestHostPorts: with the address of a pod that is gone its host ports are freed, by the plugin that made the rules.
func TestHostPorts(t *testing.T) {
	n := newNode(t)
	gone := newNamespace(t)
	n.addWith("gone", gone, `,"capabilities":{"portMappings":true},"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`)
	rules := func() (out []byte) {
		n.run(func() (err error) {
			out, err = exec.Command("nft", "list", "ruleset").Output()
			return err
		})
		return out
	}
	if !bytes.Contains(rules(), []byte("dport 8080")) {
		t.Fatalf("the pod has no host port:\n%s", rules())
	}
	removeNamespace(t, gone)
	n.waitVeths(0)
	n.run(func() error { return n.reclaimer(0).Look(context.Background()) })
	if got := n.owners(); got != "" {
		t.Errorf("reservations of %q are left, want none", got)
	}
	if left := rules(); bytes.Contains(left, []byte("dport 8080")) {
		t.Errorf("the host port still leads to the address that is free:\n%s", left)
	}
}

// TestGrace holds that a holding is left alone for the whole period, and not a part of it.
func TestGrace(t *testing.T) {
	n := newNode(t)
	n.reserve("gone", "10.244.1.90")
	r := n.reclaimer(time.Hour)
	for _, tt := range []struct {
		since time.Duration
		want  string
	}{{0, "gone"}, {59 * time.Minute, "gone"}, {61 * time.Minute, ""}} {
		if tt.since > 0 {
			r.dead[holder{n.store(), "gone", "eth0"}] = time.Now().Add(-tt.since)
		}
		n.run(func() error { return r.Look(context.Background()) })
		if got := n.owners(); got != tt.want {
			t.Errorf("seen without a pod for %s: reservations of %q are left, want %q", tt.since, got, tt.want)
		}
	}
}

// TestGraceBeginsAnew holds that a pod which is wired after it was once seen without its pair is left alone: that
// was an ADD under way.
func TestGraceBeginsAnew(t *testing.T) {
	n := newNode(t)
	n.reserve("slow", "10.244.1.90")
	r := n.reclaimer(50 * time.Millisecond)
	n.run(func() error { return r.Look(context.Background()) })
	if len(r.dead) != 1 {
		t.Fatalf("%d holdings without a pod, want one", len(r.dead))
	}
	if err := os.Remove(filepath.Join(n.store(), "10.244.1.90")); err != nil {
		t.Fatal(err)
	}
	n.addLikeFlannel("slow", newNamespace(t), "10.244.1.90")
	time.Sleep(60 * time.Millisecond)
	n.run(func() error { return r.Look(context.Background()) })
	if got := n.owners(); got != "slow" || len(r.dead) != 0 {
		t.Errorf("reservations of %q, %d holdings without a pod; want slow's and none", got, len(r.dead))
	}
}

// TestBoot frees reservations of an earlier boot without any grace period, and none of this one.
func TestBoot(t *testing.T) {
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-100 * 24 * time.Hour)
	for _, tt := range []struct {
		name, mark, want string
		old              bool // the files are from before this boot
	}{
		{"another boot", "6fd34ea3-0f2a-4a43-b2bb-2e3fd2e3a4c1\n", "flannel live", false},
		{"this boot", boot + "\n", all, true},
		{"flannel ran in this boot", "", all, false},
		{"flannel ran in an earlier boot", "", "flannel live", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := someOfEach(t)
			if tt.mark != "" {
				if err := os.WriteFile(filepath.Join(n.store(), bootMark), []byte(tt.mark), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			paths, _ := filepath.Glob(filepath.Join(n.store(), "[0-9f]*"))
			for _, p := range paths {
				if tt.old {
					if err := os.Chtimes(p, long, long); err != nil {
						t.Fatal(err)
					}
				}
			}
			n.run(func() error { return n.reclaimer(time.Hour).Boot(context.Background()) })
			if got := n.owners(); got != tt.want {
				t.Errorf("reservations of %q are left, want those of %q", got, tt.want)
			}
			if mark, err := os.ReadFile(filepath.Join(n.store(), bootMark)); string(mark) != boot+"\n" {
				t.Errorf("the mark is %q, %v; want this boot's", mark, err)
			}
		})
	}
}

func TestBootOfANewNode(t *testing.T) {
	n := newNode(t)
	n.run(func() error { return n.reclaimer(0).Boot(context.Background()) })
	if _, err := os.Stat(n.store()); !os.IsNotExist(err) {
		t.Errorf("the store was made: %v", err)
	}
}

func TestRun(t *testing.T) {
	n := someOfEach(t)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for end := time.Now().Add(5 * time.Second); n.owners() != "flannel live" && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
	}()
	n.run(func() error { return n.reclaimer(30 * time.Millisecond).Run(ctx) })
	if got := n.owners(); got != "flannel live" {
		t.Errorf("reservations of %q are left, want those of the living", got)
	}
}

func TestLive(t *testing.T) {
	n := someOfEach(t)
	n.wantLive(map[string]int{"10.244.1.1/24": 2, "fd00:10:244:1::/64": 1, "10.244.2.0/24": 0})
}

func (n *node) wantLive(want map[string]int) {
	n.Helper()
	for subnet, want := range want {
		n.run(func() error {
			if got, err := Live(n.store(), "cni0")(netip.MustParsePrefix(subnet)); got != want || err != nil {
				n.Errorf("%d pods live in %s, %v; want %d", got, subnet, err, want)
			}
			return nil
		})
	}
}

// TestPodsThatHideTheirAddress holds that a pod whose interface has no address, or another than it was given, keeps
// its own: nothing that it may hold is freed, and its subnet counts as lived in. What this plugin reserved is told by
// the pair's name, so that is freed all the same.
func TestPodsThatHideTheirAddress(t *testing.T) {
	for name, hide := range map[string]func(n *node, pod string){
		"gVisor": func(n *node, pod string) { n.dropAddresses(pod) },
		"another address": func(n *node, pod string) {
			n.dropAddresses(pod)
			n.giveAddress(pod, "192.0.2.7/24")
		},
		"another pod's address": func(n *node, pod string) {
			n.dropAddresses(pod)
			n.giveAddress(pod, "10.244.1.90/24")
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := someOfEach(t)
			sandbox := newNamespace(t)
			n.addLikeFlannel("sandbox", sandbox, "10.244.1.150")
			hide(n, sandbox)
			r := n.reclaimer(0)
			n.run(func() error { return r.Look(context.Background()) })
			if got := n.owners(); got != "flannel flannelgone live sandbox" {
				t.Errorf("reservations of %q are left, want those of the living and all of flannel's", got)
			}
			n.wantLive(map[string]int{"10.244.1.1/24": 4, "fd00:10:244:1::/64": 1})
			if err := os.Remove(filepath.Join(n.store(), bootMark)); err != nil {
				t.Fatal(err)
			}
			n.run(func() error { return r.Boot(context.Background()) })
			removeNamespace(t, sandbox)
			n.waitVeths(2)
			n.run(func() error { return r.Look(context.Background()) })
			if got := n.owners(); got != "flannel live" {
				t.Errorf("without the sandbox reservations of %q are left, want those of the living", got)
			}
		})
	}
}

// TestLiveTwillPodThatHidesItsAddress holds that a pod of this plugin's counts by its pair.
func TestLiveTwillPodThatHidesItsAddress(t *testing.T) {
	n, pod := newNode(t), newNamespace(t)
	n.add("sandbox", pod)
	n.dropAddresses(pod)
	n.wantLive(map[string]int{"10.244.1.1/24": 1, "fd00:10:244:1::/64": 1, "10.244.2.0/24": 0})
	n.run(func() error { return n.reclaimer(0).Look(context.Background()) })
	if got := n.owners(); got != "sandbox" {
		t.Errorf("reservations of %q are left, want the sandbox's", got)
	}
}

// TestOthersContainers holds that containers of another bridge, with addresses of their own, keep nothing.
func TestOthersContainers(t *testing.T) {
	n, container := someOfEach(t), newNamespace(t)
	n.plug("vethdocker", container, "docker0")
	n.giveAddress(container, "172.17.0.2/16")
	n.run(func() error { return n.reclaimer(0).Look(context.Background()) })
	if got := n.owners(); got != "flannel live" {
		t.Errorf("reservations of %q are left, want those of the living", got)
	}
}

func (n *node) giveAddress(pod, prefix string) {
	n.Helper()
	onThread(n.T, pod, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(prefix)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, addr)
	})
}

// TestFlannelOfAnotherName goes over to Twill on a node where flannel's conflist has the name cni0: no address that a pod
// of before has is given out again, and those of pods that are gone are freed, without a word about other networks.
func TestFlannelOfAnotherName(t *testing.T) {
	n, pod := newNode(t), newNamespace(t)
	n.reserveIn("cni0", "before", "10.244.1.2")
	n.reserveIn("cni0", "gone", "10.244.1.3")
	n.reserveIn("macvlan", "secondary", "192.0.2.7")
	n.plug("vethbefore", pod, "cni0")
	n.giveAddress(pod, "10.244.1.2/24")
	n.add("twill", newNamespace(t))
	if _, err := os.Stat(filepath.Join(n.store(), "10.244.1.4")); err != nil {
		t.Errorf("the new pod does not have 10.244.1.4, the first address that no pod has: %v", err)
	}
	n.wantLive(map[string]int{"10.244.1.1/24": 2, "192.0.2.0/24": 0})
	r := n.reclaimer(0)
	n.run(func() error { return r.Look(context.Background()) })
	for name, want := range map[string]bool{"cni0/10.244.1.2": true, "cni0/10.244.1.3": false, "macvlan/192.0.2.7": true, "cbr0/10.244.1.4": true} {
		if _, err := os.Stat(filepath.Join(n.dir, "networks", name)); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t", name, err == nil, want)
		}
	}
	n.dropAddresses(pod)
	n.run(func() error { return r.Look(context.Background()) })
	if _, err := os.Stat(filepath.Join(n.dir, "networks", "cni0", "10.244.1.2")); err != nil {
		t.Errorf("the address of a pod that hides it was freed: %v", err)
	}
}
