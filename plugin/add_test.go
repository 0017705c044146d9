package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func addresses(t testing.TB, result []byte) []netip.Addr {
	t.Helper()
	var r struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(result, &r); err != nil {
		t.Fatal(err)
	}
	var all []netip.Addr
	for _, ip := range r.IPs {
		all = append(all, ip.Address.Addr())
	}
	return all
}

// TestAdd wires two pods and sends real packets between them and the node, at once: nothing may wait for
// duplicate address detection.
func TestAdd(t *testing.T) {
	for name, env := range map[string]string{"v4": envV4, "v6": envV6, "dual": envDual} {
		t.Run(name, func(t *testing.T) {
			n, a, b := newNode(t, env), newNamespace(t), newNamespace(t)
			n.must("ADD", "a", a, n.config(nil))
			for _, addr := range addresses(t, n.must("ADD", "b", b, n.config(nil))) {
				mustPing(t, a, addr)
				mustTalk(t, a, b, addr)
				mustPing(t, n.ns, addr)
				mustTalk(t, n.ns, b, addr)
				gateway := netip.MustParseAddr("10.244.1.1")
				if addr.Is6() {
					gateway = netip.MustParseAddr("fd00:10:244:1::1")
				}
				mustPing(t, b, gateway)
				mustTalk(t, b, n.ns, gateway)
			}
		})
	}
}

// TestMark: a port says by its mark, and by its group from the start on, whose source addresses come from it.
func TestMark(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	addrs := addresses(t, n.must("ADD", "a", pod, n.config(nil)))
	link, err := netlinkIn(t, n.ns).LinkByName(wire.HostEnd(ipam.Owner{Container: "a", Dev: "eth0"}))
	if err != nil {
		t.Fatal(err)
	}
	port, ok := netstate.ParsePort(link.Attrs().Name, link.Attrs().Alias)
	if !ok || len(addrs) != 2 || !slices.Equal(port.Addresses(), addrs) || link.Attrs().Group != netstate.PortGroup {
		t.Errorf("the port of %v is in group %d with the mark %q", addrs, link.Attrs().Group, link.Attrs().Alias)
	}
}

// TestResult compares the results with golden files: names and hardware addresses follow from the pod, so
// they are the same every time.
func TestResult(t *testing.T) {
	for _, tt := range []struct{ name, version, env string }{
		{"v4-0.3.1", "0.3.1", envV4}, {"v4-0.4.0", "0.4.0", envV4}, {"v4-1.0.0", "1.0.0", envV4},
		{"v6-1.1.0", "1.1.0", envV6}, {"dual-1.1.0", "1.1.0", envDual},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, pod := newNode(t, tt.env), newNamespace(t)
			conf := n.config(map[string]any{"cniVersion": tt.version,
				"dns": map[string]any{"nameservers": []string{"10.96.0.10"}}})
			got := bytes.ReplaceAll(n.must("ADD", "a", pod, conf), []byte(pod), []byte("/run/netns/pod"))
			golden := filepath.Join("testdata", "result-"+tt.name+".json")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("result:\n%s\nwant %s:\n%s", got, golden, want)
			}
		})
	}
}

// TestLibcni goes through a pod's life as containerd does: with libcni's cache, CHECK, and DEL from the
// cache.
func TestLibcni(t *testing.T) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			n, pod := newNode(t, envDual), newNamespace(t)
			list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion":%q,"name":"cbr0","plugins":[%s]}`,
				version, n.config(map[string]any{"cniVersion": version})))
			if err != nil {
				t.Fatal(err)
			}
			cni := libcni.NewCNIConfigWithCacheDir([]string{binaries}, n.dir, nil)
			rt := &libcni.RuntimeConf{ContainerID: "a", NetNS: pod, IfName: "eth0",
				Args:           [][2]string{{"K8S_POD_NAME", "a"}, {"IgnoreUnknown", "1"}},
				CapabilityArgs: map[string]any{"io.kubernetes.cri.pod-annotations": nil}}
			inside(t, n.ns, func() error { return lifecycle(cni, list, rt, version) })
			n.mustBeClean(pod)
		})
	}
}

func lifecycle(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf, version string) error {
	ctx := context.Background()
	r, err := cni.AddNetworkList(ctx, list, rt)
	if err != nil {
		return fmt.Errorf("ADD: %w", err)
	}
	got, err := types100.NewResultFromResult(r)
	if err != nil || r.Version() != version || len(got.IPs) != 2 {
		return fmt.Errorf("result %v: %v, want version %s and two addresses", r, err, version)
	}
	if version != "0.3.1" { // which has no CHECK
		if err := cni.CheckNetworkList(ctx, list, rt); err != nil {
			return fmt.Errorf("CHECK: %w", err)
		}
	}
	if version == "1.1.0" {
		if err := cni.GetStatusNetworkList(ctx, list); err != nil {
			return fmt.Errorf("STATUS: %w", err)
		}
	}
	if err := cni.DelNetworkList(ctx, list, rt); err != nil {
		return fmt.Errorf("DEL: %w", err)
	}
	rt.NetNS = ""
	return cni.DelNetworkList(ctx, list, rt)
}

func TestAddTwice(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	n.must("ADD", "a", pod, n.config(nil))
	before := n.reserved()
	n.mustFail(4, "has that interface already", "ADD", "a", pod, n.config(nil))
	if after := n.reserved(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the second ADD changed the reservations from %q to %q", before, after)
	}
	if _, err := netlinkIn(t, pod).LinkByName("eth0"); err != nil {
		t.Errorf("the second ADD took the first one's interface: %v", err)
	}
}

func TestAddParallel(t *testing.T) {
	n := newNode(t, envDual)
	const pods = 100
	results := make([]reply, pods)
	names := make([]string, pods)
	for i := range names {
		names[i] = newNamespace(t)
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range pods {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = n.call("ADD", fmt.Sprintf("pod%d", i), names[i], n.config(nil))
		})
	}
	wg.Wait()
	seen := map[netip.Addr]bool{}
	for i, r := range results {
		if r.failed != nil {
			t.Fatalf("pod%d: %v", i, r.failed)
		}
		for _, a := range addresses(t, r.stdout) {
			seen[a] = true
		}
	}
	if len(seen) != 2*pods || len(n.reserved()) != 2*pods {
		t.Errorf("%d distinct addresses and %d reservations, want %d", len(seen), len(n.reserved()), 2*pods)
	}
	mustPing(t, names[0], addresses(t, results[pods-1].stdout)[0])
}

func TestRangeFull(t *testing.T) {
	n := newNode(t, strings.Replace(envV4, "10.244.1.1/24", "10.244.1.1/29", 1))
	for i := range 5 {
		n.must("ADD", fmt.Sprint("pod", i), newNamespace(t), n.config(nil))
	}
	pod := newNamespace(t)
	n.mustFail(11, "all 5 addresses of 10.244.1.0/29", "ADD", "one-too-many", pod, n.config(nil))
	// To the runtime an error of STATUS is a node whose network is not ready, and its pods are evicted.
	n.must("STATUS", "", "", n.config(map[string]any{"cniVersion": "1.1.0"}))
	n.must("DEL", "pod3", "", n.config(nil))
	got := addresses(t, n.must("ADD", "one-too-many", pod, n.config(nil)))
	if got[0] != netip.MustParseAddr("10.244.1.5") {
		t.Errorf("got %s, want the only free address 10.244.1.5", got)
	}
}

// TestReservedElsewhere holds that an address which another network's directory has is given to nobody, and
// counts.
func TestReservedElsewhere(t *testing.T) {
	n := newNode(t, strings.Replace(envV4, "10.244.1.1/24", "10.244.1.1/29", 1))
	flannels := filepath.Join(n.dir, "networks", "cni0")
	if err := os.MkdirAll(flannels, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"10.244.1.2": "a\r\neth0", "10.244.1.3": "", "10.244.1.4": "b",
		"10.244.1.5": "c\r\neth0"} {
		if err := os.WriteFile(filepath.Join(flannels, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.mustFail(11, "address 10.244.1.4 was asked for and is reserved", "ADD", "d", newNamespace(t),
		n.config(runtimeConfig(map[string]any{"ips": []string{"10.244.1.4"}})))
	for i, want := range []string{"10.244.1.3", "10.244.1.6"} { // the empty file is nobody's
		got := addresses(t, n.must("ADD", fmt.Sprint("pod", i), newNamespace(t), n.config(nil)))
		if got[0] != netip.MustParseAddr(want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	n.must("STATUS", "", "", n.config(map[string]any{"cniVersion": "1.1.0"}))
	n.mustFail(11, "all 5 addresses of 10.244.1.0/29", "ADD", "e", newNamespace(t), n.config(nil))
}

func TestNoLease(t *testing.T) {
	n, pod := newNode(t, ""), newNamespace(t)
	file := filepath.Join(n.dir, "subnet.env")
	n.mustFail(11, file+" does not exist: the agent (twilld)", "ADD", "a", pod, n.config(nil))
	n.mustFail(50, file+" does not exist: the agent (twilld)", "STATUS", "", "",
		n.config(map[string]any{"cniVersion": "1.1.0"}))
	n.lease("FLANNEL_MTU=many\n")
	n.mustFail(11, `FLANNEL_MTU "many"`, "ADD", "a", pod, n.config(nil))
	n.lease(envV4 + "TWILL_BOOT_ID=6fd34ea3-0f2a-4a43-b2bb-2e3fd2e3a4c1\n")
	n.mustFail(11, file+" is of an earlier boot", "ADD", "a", pod, n.config(nil))
	n.mustBeClean(pod)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	n.lease(envV4 + "TWILL_BOOT_ID=" + string(boot))
	n.must("ADD", "a", pod, n.config(nil))
}

// TestIPv6TurnedOff adds a pod where the runtime turned IPv6 off in the new namespace.
func TestIPv6TurnedOff(t *testing.T) {
	n, pod := newNode(t, envV6), newNamespace(t)
	inside(t, pod, func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0))
	})
	mustPing(t, n.ns, addresses(t, n.must("ADD", "a", pod, n.config(nil)))[0])
}

// TestBridgeOfAnother holds that a bridge with another address or MTU than the lease's never fails a pod, and
// that it is left to the agent.
func TestBridgeOfAnother(t *testing.T) {
	n, a := newNode(t, envV4), newNamespace(t)
	n.must("ADD", "a", a, n.config(nil))
	n.lease(strings.ReplaceAll(strings.ReplaceAll(envV4, "10.244.1.", "10.244.9."), "1450", "1400"))
	b := newNamespace(t)
	if got := addresses(t, n.must("ADD", "b", b, n.config(nil))); got[0] != netip.MustParseAddr("10.244.9.2") {
		t.Errorf("got %s, want 10.244.9.2", got)
	}
}

func TestPrevResultPassesThrough(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	out := n.must("ADD", "a", pod, n.config(map[string]any{"prevResult": json.RawMessage(
		`{"cniVersion":"1.0.0","interfaces":[{"name":"net7","sandbox":"/x"}],"ips":[{"address":"192.0.2.9/24","interface":0}]}`)}))
	var r types100.Result
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Interfaces) != 4 || r.Interfaces[0].Name != "net7" || len(r.IPs) != 2 || *r.IPs[0].Interface != 0 ||
		*r.IPs[1].Interface != 3 {
		t.Errorf("result %s, want the earlier plugin's part first and eth0 as interface 3", out)
	}
}
