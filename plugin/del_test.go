package plugin

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
)

// withPrev is n's config as a runtime sends it after an ADD that gave result.
func (n *node) withPrev(result []byte) []byte {
	return n.config(map[string]any{"prevResult": rawJSON(result)})
}

type rawJSON []byte

func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }

// TestDel holds that DEL leaves nothing, whatever of the pod and the node is gone already, and that a second
// one is as good as the first.
func TestDel(t *testing.T) {
	drop := func(t *testing.T, n *node, pod string) {}
	tests := []struct {
		name    string
		prepare func(t *testing.T, n *node, pod string)
		netns   func(pod string) string
		prev    bool
	}{
		{"everything there", drop, func(pod string) string { return pod }, true},
		{"no prevResult", drop, func(pod string) string { return pod }, false},
		{"no netns given", drop, func(string) string { return "" }, false},
		{"netns path gone", removeNamespace, func(pod string) string { return pod }, true},
		{"netns path gone, no prevResult", removeNamespace, func(pod string) string { return pod }, false},
		{"netns path never there", drop, func(pod string) string { return pod + "-none" }, true},
		{"netns path is a plain file", drop, func(string) string { return plainFile(t) }, true},
		{"interface gone", func(t *testing.T, n *node, pod string) { deleteLink(t, pod, "eth0") },
			func(pod string) string { return pod }, true},
		{"subnet.env gone", func(t *testing.T, n *node,
			pod string) {
			remove(t,
				filepath.Join(n.dir, "subnet.env"))
		}, func(pod string) string { return pod }, true},
		{"bridge gone", func(t *testing.T, n *node, pod string) { deleteLink(t, n.ns, "cni0") },
			func(pod string) string { return pod }, true},
		{"last_reserved_ip and lock gone", func(t *testing.T, n *node, pod string) {
			remove(t, filepath.Join(n.storeDir(), "last_reserved_ip.0"))
			remove(t, filepath.Join(n.storeDir(), "lock"))
		}, func(pod string) string { return pod }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, pod, other := newNode(t, envDual), newNamespace(t), newNamespace(t)
			result := n.must("ADD", "a", pod, n.config(nil))
			n.must("ADD", "other", other, n.config(nil))
			tt.prepare(t, n, pod)
			conf := n.config(nil)
			if tt.prev {
				conf = n.withPrev(result)
			}
			n.must("DEL", "a", tt.netns(pod), conf)
			n.must("DEL", "a", tt.netns(pod), conf)
			n.must("DEL", "a", "", n.config(nil))
			if len(n.reserved()) != 2 {
				t.Errorf("reservations %q, want the other pod's two", n.reserved())
			}
			n.must("DEL", "other", other, n.config(nil))
			pods := []string{other}
			if _, err := os.Stat(pod); err == nil {
				pods = append(pods, pod)
			}
			n.mustBeClean(pods...)
		})
	}
}

// TestDelOfAReusedNamespace holds that DEL takes nothing of another pod whose namespace CNI_NETNS is by now (it was
// /proc/PID/ns/net, and PID is another process): neither of one of this plugin's nor of one of flannel's chain.
func TestDelOfAReusedNamespace(t *testing.T) {
	n, a, b := newNode(t, envDual), newNamespace(t), newNamespace(t)
	n.must("ADD", "a", a, n.config(nil))
	n.must("ADD", "b", b, n.config(nil))
	n.must("DEL", "a", b, n.config(nil))
	if _, err := netlinkIn(t, b).LinkByName("eth0"); err != nil {
		t.Fatalf("the other pod's interface: %v", err)
	}
	n.must("DEL", "b", b, n.config(nil))
	n.mustBeClean(a, b)

	buildUpstream(t, "main/bridge")
	buildUpstream(t, "ipam/host-local")
	chain := n.config(map[string]any{"type": "bridge", "bridge": "cni0", "name": "flannels",
		"ipam": map[string]any{"type": "host-local", "subnet": "10.244.1.0/24", "dataDir": filepath.Join(n.dir, "networks")}})
	c := n.command("ADD", "b", b, chain)
	c.Path = filepath.Join(binaries, "bridge")
	c.Stderr = os.Stderr
	inside(t, n.ns, c.Run)
	n.must("DEL", "a", b, n.config(nil))
	if _, err := netlinkIn(t, b).LinkByName("eth0"); err != nil {
		t.Fatalf("the interface of flannel's chain: %v", err)
	}
	n.must("DEL", "b", b, n.config(nil))
	if _, err := netlinkIn(t, b).LinkByName("eth0"); err == nil {
		t.Error("DEL leaves the interface that flannel's chain made for the pod itself")
	}
}

// removeNamespace removes a pod's network namespace, as a runtime does that deletes the pod before its
// network.
func removeNamespace(t *testing.T, _ *node, pod string) {
	t.Helper()
	if err := (host.Host{Name: filepath.Base(pod)}).Delete(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(pod); !os.IsNotExist(err) {
		t.Fatalf("%s is still there: %v", pod, err)
	}
}

// TestDelOfAShorterResult holds that a prevResult with fewer addresses than were reserved, as a later plugin
// may make it, leaves none of them reserved.
func TestDelOfAShorterResult(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	for _, first := range []string{"10.244.1.2/24", "fd00:10:244:1::3/64"} {
		n.must("ADD", "a", pod, n.config(nil))
		n.must("DEL", "a", pod, n.withPrev(fmt.Appendf(nil, `{"cniVersion":"1.0.0","ips":[{"address":%q}]}`, first)))
		n.mustBeClean(pod)
	}
}

// TestDelKeepsAddressesOfRules holds that the addresses stay reserved while portmap has not taken back the
// rules that lead to them.
func TestDelKeepsAddressesOfRules(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	result := n.must("ADD", "a", pod, n.config(runtimeConfig(hostPort)))
	n.path = t.TempDir()
	if err := os.WriteFile(filepath.Join(n.path, "portmap"), []byte("#!/bin/sh\necho it cannot >&2\nexit 1\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	for _, conf := range [][]byte{n.withPrev(result), n.config(nil)} {
		n.mustFail(999, "portmap DEL: exit status 1: it cannot", "DEL", "a", pod, conf)
		if r := n.reserved(); r["10.244.1.2"] == "" || r["fd00:10:244:1::2"] == "" {
			t.Fatalf("reservations %q: an address is free that rules lead to", r)
		}
	}
	n.path = ""
	n.must("DEL", "a", pod, n.withPrev(result))
	n.mustBeClean(pod)
}

// TestGCOldForm holds that GC keeps what host-local's old form reserves for a valid pod, and frees that of
// others.
func TestGCOldForm(t *testing.T) {
	n := newNode(t, envV4)
	if err := os.MkdirAll(n.storeDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"10.244.1.2": "valid", "10.244.1.3": "gone"} {
		if err := os.WriteFile(filepath.Join(n.storeDir(), name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.must("GC", "", "", n.config(map[string]any{"cniVersion": "1.1.0",
		"cni.dev/valid-attachments": []map[string]string{{"containerID": "valid", "ifname": "eth0"}}}))
	if got := fmt.Sprint(n.reserved()); got != fmt.Sprint(map[string]string{"10.244.1.2": "valid"}) {
		t.Errorf("reservations %s, want that of the valid pod", got)
	}
}

func plainFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func deleteLink(t *testing.T, ns, name string) {
	t.Helper()
	h := netlinkIn(t, ns)
	link, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkDel(link)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestDelBeforeAnyAdd(t *testing.T) {
	n := newNode(t, "")
	n.must("DEL", "a", "", n.config(map[string]any{"mtu": "nonsense"}))
	if _, err := os.Stat(n.storeDir()); !os.IsNotExist(err) {
		t.Errorf("DEL made %s", n.storeDir())
	}
}

// TestOwnNamespace holds that neither ADD nor DEL touches the node when a runtime names the node's own
// namespace.
func TestOwnNamespace(t *testing.T) {
	n := newNode(t, envV4)
	h := netlinkIn(t, n.ns)
	uplink := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "uplink"}
	if err := h.LinkAdd(uplink); err != nil {
		t.Fatal(err)
	}
	n.mustFail(8, "the node's own network namespace", "ADD", "a", n.ns, n.config(nil))
	n.mustFail(8, "the node's own network namespace", "DEL", "a", n.ns, n.config(nil))
	if _, err := h.LinkByName("eth0"); err != nil {
		t.Errorf("the node's eth0: %v", err)
	}
	if len(n.reserved()) > 0 {
		t.Errorf("left in the store: %q", n.reserved())
	}
}

// TestDelOfFlannelsPod deletes what flannel, bridge and host-local made: a pair with a random name, a
// reservation and flannel's own file, through a config of type flannel.
func TestDelOfFlannelsPod(t *testing.T) {
	n, pod := newNode(t, ""), newNamespace(t)
	store, err := disk.New("cbr0", filepath.Join(n.dir, "networks"))
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := store.Reserve("a", "eth0", netip.MustParseAddr("10.244.1.7").AsSlice(), "0"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	flannel := filepath.Join(n.dir, "flannel")
	if err := os.MkdirAll(flannel, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(flannel, "a"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := netlinkIn(t, pod).LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"},
		PeerName: "vethffff"}); err != nil {
		t.Fatal(err)
	}
	conf := n.config(map[string]any{"type": "flannel", "dataDir": flannel,
		"delegate": map[string]any{"hairpinMode": true, "isDefaultGateway": true}})
	n.must("DEL", "a", pod, conf)
	n.must("DEL", "a", pod, conf)
	n.mustBeClean(pod)
	if _, err := os.Stat(filepath.Join(flannel, "a")); !os.IsNotExist(err) {
		t.Errorf("flannel's file of the container: %v, want it gone", err)
	}
}

func TestGC(t *testing.T) {
	n := newNode(t, envDual)
	for _, id := range []string{"a", "b", "c"} {
		n.must("ADD", id, newNamespace(t), n.config(nil))
	}
	gc := func(extra map[string]any) {
		extra["cniVersion"] = "1.1.0"
		n.must("GC", "", "", n.config(extra))
	}
	gc(map[string]any{})
	if len(n.reserved()) != 6 {
		t.Fatalf("without a list %d reservations stayed, want all 6", len(n.reserved()))
	}
	gc(map[string]any{"cni.dev/valid-attachments": []map[string]string{{"containerID": "b", "ifname": "eth0"}}})
	if got := fmt.Sprint(n.reserved()); got != fmt.Sprint(map[string]string{"10.244.1.3": "b\r\neth0",
		"fd00:10:244:1::3": "b\r\neth0"}) {
		t.Fatalf("reservations %s, want those of b", got)
	}
	pod := newNamespace(t)
	n.must("ADD", "d", pod, n.config(runtimeConfig(hostPort)))
	remove(t, filepath.Join(n.storeDir(), "10.244.1.5")) // only the rules and the index are left of it
	gc(map[string]any{"cni.dev/valid-attachments": nil})
	n.mustBeClean(pod)
	if left := rules(t, n.ns); strings.Contains(left, "CNI-DN-") {
		t.Errorf("rules are left:\n%s", left)
	}
}

// TestHeldLock holds that a lock that somebody keeps ends ADD and DEL with an error that names it, also where the bridge has
// to be made, and that all works when it is released.
func TestHeldLock(t *testing.T) {
	old := ipam.LockTimeout
	ipam.LockTimeout = 100 * time.Millisecond
	t.Cleanup(func() { ipam.LockTimeout = old })
	n, pod := newNode(t, envV4), newNamespace(t)
	n.must("ADD", "a", pod, n.config(nil))
	held, err := ipam.Store(n.storeDir()).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(n.storeDir(), "lock") + " was not released for 100ms by process"
	inside(t, n.ns, func() error {
		node, err := wire.OpenNode()
		if err != nil {
			return err
		}
		defer node.Close()
		args := &skel.CmdArgs{ContainerID: "a", Netns: pod, IfName: "eth0", StdinData: n.config(nil)}
		_, bridgeErr := wire.Bridge{Name: "cni1"}.Ensure(t.Context(), node, ipam.Store(n.storeDir()))
		for what, err := range map[string]error{"DEL": del(t.Context(), args), "the bridge": bridgeErr,
			"ADD": add(t.Context(), &skel.CmdArgs{ContainerID: "b", Netns: pod, IfName: "eth0", StdinData: n.config(nil)})} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		}
		return nil
	})
	held.Close()
	n.must("DEL", "a", pod, n.config(nil))
	n.mustBeClean(pod)
}
