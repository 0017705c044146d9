package pods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/subnet"
)

const all = "flannel flannelgone gone live"

// TestCheck frees what pods that are gone have left, after the grace period and not before, and
// never an address of a pod that lives without any runtime.
func TestCheck(t *testing.T) {
	n := someOfEach(t)
	r := n.reclaimer(time.Hour)
	n.run(func() error { return r.Check(context.Background()) })
	if got := n.owners(); got != all {
		t.Fatalf("within the grace period reservations of %q are left, want all: %q", got, all)
	}
	r.Grace = 0
	n.run(func() error { return r.Check(context.Background()) })
	if got := n.owners(); got != "flannel live" {
		t.Errorf("reservations of %q are left, want those of the living: flannel, live", got)
	}
	index, err := os.ReadDir(filepath.Join(n.store(), ".twill"))
	if err != nil || len(index) != 2 {
		t.Errorf("the index holds %v, %v; want two entries of the living pod", index, err)
	}
	n.add("next", newNamespace(t))
	mark, old := filepath.Join(n.store(), bootMark), time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(mark, old, old); err != nil {
		t.Fatal(err)
	}
	n.run(func() error { return r.Check(context.Background()) })
	if info, err := os.Stat(mark); err != nil || info.Mode() != 0o644 || !info.ModTime().Equal(old) {
		t.Errorf("the mark of this boot: %v, %v; want the mode 0644, and that it was not written again", info, err)
	}
}

// TestHostPorts: with the address of a pod that is gone its host ports are freed, by the plugin
// that made the rules.
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
	var log bytes.Buffer
	without := n.reclaimer(0)
	without.Plugins, without.Log = t.TempDir(), slog.New(slog.NewTextHandler(&log, nil))
	n.run(func() error {
		if err := without.Check(context.Background()); err == nil {
			t.Error("without the plugin that made the rules all was freed")
		}
		return nil
	})
	if got := n.owners(); got != "gone" || log.Len() > 0 {
		t.Errorf("after an error reservations of %q are left, want those of gone; log %q", got, log.String())
	}
	n.run(func() error { return n.reclaimer(0).Check(context.Background()) })
	if got := n.owners(); got != "" {
		t.Errorf("reservations of %q are left, want none", got)
	}
	if left := rules(); bytes.Contains(left, []byte("dport 8080")) {
		t.Errorf("the host port still leads to the address that is free:\n%s", left)
	}
}

// TestGrace holds that an allocation is left alone for the whole period, and not a part of it.
func TestGrace(t *testing.T) {
	n := newNode(t)
	n.reserve("gone", "10.244.1.90")
	r := n.reclaimer(time.Hour)
	for _, tt := range []struct {
		since time.Duration
		want  string
	}{{0, "gone"}, {59 * time.Minute, "gone"}, {61 * time.Minute, ""}} {
		if tt.since > 0 {
			r.dead[allocationID{ipam.Store(n.store()), ipam.Owner{Container: "gone", Dev: "eth0"}}] = time.Now().Add(-tt.since)
		}
		n.run(func() error { return r.Check(context.Background()) })
		if got := n.owners(); got != tt.want {
			t.Errorf("seen without a pod for %s: reservations of %q are left, want %q", tt.since, got, tt.want)
		}
	}
}

// TestGraceBeginsAnew holds that a pod which is wired after it was once seen without its pair is
// left alone: that was an ADD under way.
func TestGraceBeginsAnew(t *testing.T) {
	n := newNode(t)
	n.reserve("slow", "10.244.1.90")
	r := n.reclaimer(time.Hour)
	n.run(func() error { return r.Check(context.Background()) })
	if len(r.dead) != 1 {
		t.Fatalf("%d allocations without a pod, want one", len(r.dead))
	}
	for id := range r.dead {
		r.dead[id] = time.Now().Add(-2 * time.Hour)
	}
	if err := os.Remove(filepath.Join(n.store(), "10.244.1.90")); err != nil {
		t.Fatal(err)
	}
	n.addLikeFlannel("slow", newNamespace(t), "10.244.1.90")
	n.run(func() error { return r.Check(context.Background()) })
	if got := n.owners(); got != "slow" || len(r.dead) != 0 {
		t.Errorf("reservations of %q, %d allocations without a pod; want slow's and none", got, len(r.dead))
	}
}

// TestBoot frees reservations of an earlier boot without any grace period, and none of this one.
func TestBoot(t *testing.T) {
	boot := subnet.BootID()
	if boot == "" {
		t.Fatal("the kernel has no boot ID")
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

// TestOwnStoreOfAnotherLease frees what is reserved under the network's own name, whatever the lease is now.
func TestOwnStoreOfAnotherLease(t *testing.T) {
	n := newNode(t)
	n.reserve("gone", "10.244.99.7")
	n.run(func() error { return n.reclaimer(0).Check(context.Background()) })
	if got := n.owners(); got != "" {
		t.Errorf("reservations of %q are left, want none", got)
	}
}

// TestOurs: what is reserved elsewhere is this network's only if all its addresses are, and it has some.
func TestOurs(t *testing.T) {
	r := New(Config{Store: "/own"})
	for _, tt := range []struct {
		dir, addrs string
		want       bool
	}{
		{"/own", "", true}, {"/own", "192.0.2.7", true}, {"/other", "", false}, {"/other", "10.244.1.7", true},
		{"/other", "192.0.2.7", false}, {"/other", "10.244.1.7 192.0.2.7", false}, {"/other", "fd00:10:244:1::7 10.244.1.7", true},
	} {
		h := ipam.Allocation{Store: ipam.Store(tt.dir)}
		for a := range strings.FieldsSeq(tt.addrs) {
			h.Addrs = append(h.Addrs, netip.MustParseAddr(a))
		}
		if got := r.ours(h, lease()); got != tt.want {
			t.Errorf("%s in %s: %t, want %t", tt.addrs, tt.dir, got, tt.want)
		}
	}
}

// TestWithoutABootTime: where the kernel does not tell when it started, nothing is taken for an earlier boot's.
func TestWithoutABootTime(t *testing.T) {
	n := newNode(t)
	n.reserve("gone", "10.244.1.90")
	n.run(func() error {
		err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("/dev/null", "/proc/stat", "", unix.MS_BIND, ""))
		if err != nil {
			return err
		}
		if err := n.reclaimer(0).Boot(context.Background()); err == nil || n.owners() != "gone" {
			t.Errorf("Boot without a boot time: %v, reservations of %q are left", err, n.owners())
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(n.store(), bootMark)); err == nil {
		t.Error("the store has a boot's mark")
	}
}

// TestUnreadableStore: what cannot be read is an error, and not an empty store.
func TestUnreadableStore(t *testing.T) {
	n := newNode(t)
	if err := errors.Join(os.MkdirAll(filepath.Dir(n.store()), 0o755), os.WriteFile(n.store(), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := n.reclaimer(0).reclaim(context.Background(), nil); err == nil {
		t.Error("a store that is a file was read")
	}
}

// TestStrangers: what is named after an address and is no reservation is told once, and keeps none from being freed.
func TestStrangers(t *testing.T) {
	n := someOfEach(t)
	stranger := filepath.Join(n.store(), "10.244.1.77")
	if err := os.Mkdir(stranger, 0o755); err != nil {
		t.Fatal(err)
	}
	r, log := n.reclaimer(0), &bytes.Buffer{}
	r.Log = slog.New(slog.NewTextHandler(log, nil))
	for range 2 {
		n.run(func() error { return r.Check(context.Background()) })
	}
	if got := strings.Count(log.String(), "these are no files that can be read"); got != 1 || !strings.Contains(log.String(), stranger) {
		t.Errorf("it is told %d times:\n%s", got, log)
	}
	if err := os.Remove(stranger); err != nil {
		t.Fatal(err)
	}
	if got := n.owners(); got != "flannel live" {
		t.Errorf("reservations of %q are left, want those of the living: flannel, live", got)
	}
}

// TestUnknownPods: while it is unknown which pods are there, which CAP_NET_ADMIN is needed for, nothing is freed, and
// nobody is told that a subnet has no pods.
func TestUnknownPods(t *testing.T) {
	n := newNode(t)
	n.addLikeFlannel("flannel", newNamespace(t), "10.244.1.90")
	n.reserve("gone", "10.244.1.91")
	n.run(func() error {
		head, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		if err := unix.Capset(&head, &none[0]); err != nil { // of this thread, which ends with the function
			return err
		}
		if err := n.reclaimer(0).Check(context.Background()); !errors.Is(err, unix.EACCES) {
			t.Errorf("Check: %v, want %v", err, unix.EACCES)
		}
		for _, store := range []string{n.store(), ""} {
			if _, err := Live(store, "cni0")(netip.MustParsePrefix("10.244.1.0/24")); !errors.Is(err, unix.EACCES) {
				t.Errorf("Live of the store %q: %v, want %v", store, err, unix.EACCES)
			}
		}
		return nil
	})
	if got := n.owners(); got != "flannel gone" {
		t.Errorf("reservations of %q are left, want both", got)
	}
}

// TestWithoutABootID: where the kernel names no boot, nothing is taken for an earlier boot's, and
// the rest works.
func TestWithoutABootID(t *testing.T) {
	n := newNode(t)
	n.reserve("gone", "10.244.1.90")
	n.run(func() error {
		err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", "/proc/sys/kernel/random", "tmpfs", 0, ""))
		if err != nil {
			return err
		}
		if err := n.reclaimer(0).Boot(context.Background()); err == nil || n.owners() != "gone" {
			t.Errorf("Boot without a boot ID: %v, reservations of %q are left", err, n.owners())
		}
		return n.reclaimer(0).Check(context.Background())
	})
	if _, err := os.Stat(filepath.Join(n.store(), bootMark)); err == nil || n.owners() != "" {
		t.Errorf("the store has a boot's mark: %v; reservations of %q are left", err == nil, n.owners())
	}
}

// TestBootThatEnds: what there was no time for is not noted as done.
func TestBootThatEnds(t *testing.T) {
	n := newNode(t)
	n.reserve("gone", "10.244.1.90")
	if err := os.WriteFile(filepath.Join(n.store(), bootMark), []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.run(func() error {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := n.reclaimer(0).Boot(ctx); !errors.Is(err, context.Canceled) || n.owners() != "gone" {
			t.Errorf("Boot: %v, reservations of %q are left", err, n.owners())
		}
		return n.reclaimer(0).Boot(context.Background())
	})
	if n.owners() != "" {
		t.Errorf("reservations of %q are left", n.owners())
	}
}

func TestBootOfANewNode(t *testing.T) {
	n := newNode(t)
	n.run(func() error { return n.reclaimer(0).Boot(context.Background()) })
	n.run(func() error { return n.reclaimer(0).Check(context.Background()) })
	if _, err := os.Stat(n.store()); !os.IsNotExist(err) {
		t.Errorf("the store was made: %v", err)
	}
}

func TestRun(t *testing.T) {
	n := someOfEach(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.run(func() error { return n.reclaimer(30 * time.Millisecond).Run(ctx) })
	}()
	defer func() { cancel(); <-done }()
	testwait.Nil(t, "reservations of the living alone are left", func() error {
		if got := n.owners(); got != "flannel live" {
			return fmt.Errorf("they are of %q", got)
		}
		return nil
	})
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

// TestPodsThatHideTheirAddress holds that a pod whose interface has no address, or another than it
// was given, keeps its own: nothing that it may hold is freed, and its subnet counts as lived in.
// The pair's name identifies what this plugin reserved, so that is freed all the same.
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
			var log bytes.Buffer
			r := n.reclaimer(0)
			r.Log = slog.New(slog.NewTextHandler(&log, nil))
			for range 2 {
				n.run(func() error { return r.Check(context.Background()) })
			}
			if got := n.owners(); got != "flannel flannelgone live sandbox" {
				t.Errorf("reservations of %q are left, want those of the living and all of flannel's", got)
			}
			if strings.Count(log.String(), "are kept") != 1 || !strings.Contains(log.String(), "count=2 ends=[vethsandbox]") {
				t.Errorf("the log does not say once that two reservations are kept, and why:\n%s", log.String())
			}
			n.wantLive(map[string]int{"10.244.1.1/24": 4, "fd00:10:244:1::/64": 1})
			if err := os.Remove(filepath.Join(n.store(), bootMark)); err != nil {
				t.Fatal(err)
			}
			n.run(func() error { return r.Boot(context.Background()) })
			removeNamespace(t, sandbox)
			n.waitVeths(2)
			n.run(func() error { return r.Check(context.Background()) })
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
	n.run(func() error { return n.reclaimer(0).Check(context.Background()) })
	if got := n.owners(); got != "sandbox" {
		t.Errorf("reservations of %q are left, want the sandbox's", got)
	}
}

// TestOthersContainers holds that containers of another bridge, with addresses of their own, keep nothing.
func TestOthersContainers(t *testing.T) {
	n, container := someOfEach(t), newNamespace(t)
	n.plug("vethdocker", container, "docker0")
	n.giveAddress(container, "172.17.0.2/16")
	n.run(func() error { return n.reclaimer(0).Check(context.Background()) })
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

// TestFlannelOfAnotherName goes over to Twill on a node where flannel's conflist has the name cni0:
// no address that a pod of before has is given out again, and those of pods that are gone are
// freed, without a word about other networks.
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
	n.run(func() error { return r.Check(context.Background()) })
	for name, want := range map[string]bool{"cni0/10.244.1.2": true, "cni0/10.244.1.3": false, "macvlan/192.0.2.7": true, "cbr0/10.244.1.4": true} {
		if _, err := os.Stat(filepath.Join(n.dir, "networks", name)); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t", name, err == nil, want)
		}
	}
	n.dropAddresses(pod)
	n.run(func() error { return r.Check(context.Background()) })
	if _, err := os.Stat(filepath.Join(n.dir, "networks", "cni0", "10.244.1.2")); err != nil {
		t.Errorf("the address of a pod that hides it was freed: %v", err)
	}
}
