package plugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/twill-net/twill/internal/host"
)

// binaries is where TestMain puts twill and the upstream plugins that tests use.
var binaries string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if os.Getenv("TWILL_TEST_IPAM") != "" {
		return ipamMain()
	}
	sweepCrashedRuns()
	dir, err := os.MkdirTemp("", "twp-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	for name, pkg := range map[string]string{
		"twill":     "github.com/twill-net/twill/cmd/twill",
		"portmap":   "github.com/containernetworking/plugins/plugins/meta/portmap",
		"bandwidth": "github.com/containernetworking/plugins/plugins/meta/bandwidth",
	} {
		if err := build(name, pkg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// build puts a program among the binaries.
func build(name, pkg string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(binaries, name), pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// buildUpstream puts one more of upstream's plugins among the binaries: "main/bridge".
func buildUpstream(t testing.TB, plugin string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(binaries, filepath.Base(plugin))); err == nil {
		return
	}
	if err := build(filepath.Base(plugin), "github.com/containernetworking/plugins/plugins/"+plugin); err != nil {
		t.Fatal(err)
	}
}

// sweepCrashedRuns removes the namespaces (twp-<pid>-<number>) of test processes that are gone.
func sweepCrashedRuns() {
	paths, _ := filepath.Glob("/run/netns/twp-*-*")
	for _, path := range paths {
		pid, err := strconv.Atoi(strings.Split(filepath.Base(path), "-")[1])
		if err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = host.Host{Name: filepath.Base(path)}.Delete()
		}
	}
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

var namespaces atomic.Int32

// newNamespace makes a network namespace that the test's end removes, and gives its path.
func newNamespace(t testing.TB) string {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root: network namespaces are the real thing that is tested")
		}
		t.Skip("needs root")
	}
	name := fmt.Sprintf("twp-%d-%d", os.Getpid(), namespaces.Add(1))
	ns := host.Host{Name: name}
	if err := ns.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Delete() })
	return ns.Path()
}

// inside calls f on a thread of its own in the network namespace at path.
func inside(t testing.TB, path string, f func() error) {
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

// netlinkIn is a netlink handle in the namespace at path.
func netlinkIn(t testing.TB, path string) (h *netlink.Handle) {
	t.Helper()
	inside(t, path, func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	t.Cleanup(h.Close)
	return h
}

const (
	envV4   = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	envV6   = "FLANNEL_IPV6_NETWORK=fd00:10:244::/48\nFLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n"
	envDual = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n" + envV6
)

// node is a machine with a lease: a namespace, a subnet.env and a store.
type node struct {
	t   testing.TB
	ns  string
	dir string

	args, path string // CNI_ARGS, and CNI_PATH if it is not where the binaries are
}

func newNode(t testing.TB, env string) *node {
	t.Helper()
	n := &node{t: t, ns: newNamespace(t), dir: t.TempDir()}
	if env != "" {
		n.lease(env)
	}
	return n
}

func (n *node) lease(env string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, "subnet.env"), []byte(env), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// config is a network config for n, with more keys or other values from extra.
func (n *node) config(extra map[string]any) []byte {
	n.t.Helper()
	conf := map[string]any{"cniVersion": "1.0.0", "name": "cbr0", "type": "twill",
		"subnetFile": filepath.Join(n.dir, "subnet.env"), "ipam": map[string]any{"dataDir": filepath.Join(n.dir,
			"networks")}}
	maps.Copy(conf, extra)
	data, err := json.Marshal(conf)
	if err != nil {
		n.t.Fatal(err)
	}
	return data
}

// reply is what one call of the plugin gave.
type reply struct {
	stdout, stderr []byte
	failed         *types.Error // nil: it succeeded
}

func (n *node) command(cmd, id, pod string, conf []byte) *exec.Cmd {
	c := exec.Command(filepath.Join(binaries, "twill"))
	c.Env = []string{"CNI_COMMAND=" + cmd, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + pod, "CNI_IFNAME=eth0",
		"CNI_ARGS=" + n.args,
		"CNI_PATH=" + cmp.Or(n.path, binaries), "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"}
	c.Stdin = bytes.NewReader(conf)
	return c
}

// call executes the plugin as a runtime does.
func (n *node) call(cmd, id, pod string, conf []byte) reply {
	n.t.Helper()
	c := n.command(cmd, id, pod, conf)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	inside(n.t, n.ns, c.Start)
	return n.reply(c.Wait(), &stdout, &stderr)
}

func (n *node) reply(err error, stdout, stderr *bytes.Buffer) reply {
	n.t.Helper()
	r := reply{stdout: stdout.Bytes(), stderr: stderr.Bytes()}
	if err != nil {
		r.failed = new(types.Error)
		if err2 := json.Unmarshal(r.stdout, r.failed); err2 != nil {
			n.t.Fatalf("%v, and no error as JSON: %v\n%s\n%s", err, err2, r.stdout, r.stderr)
		}
	}
	return r
}

// must is call for what has to succeed, without a word on standard error.
func (n *node) must(cmd, id, pod string, conf []byte) []byte {
	n.t.Helper()
	r := n.call(cmd, id, pod, conf)
	if r.failed != nil {
		n.t.Fatalf("%s %s: %v", cmd, id, r.failed)
	}
	if len(r.stderr) > 0 {
		n.t.Fatalf("%s %s wrote on standard error: %s", cmd, id, r.stderr)
	}
	return r.stdout
}

// mustFail is call for what has to fail with that code and those words.
func (n *node) mustFail(code uint, words, cmd, id, pod string, conf []byte) {
	n.t.Helper()
	r := n.call(cmd, id, pod, conf)
	if r.failed == nil {
		n.t.Fatalf("%s %s succeeded, want code %d: %q", cmd, id, code, words)
	}
	if r.failed.Code != code || !strings.Contains(r.failed.Msg, words) {
		n.t.Fatalf("%s %s: code %d: %s\nwant code %d: %q", cmd, id, r.failed.Code, r.failed.Msg, code, words)
	}
}

func (n *node) storeDir() string { return filepath.Join(n.dir, "networks", "cbr0") }

// indexDir is what the plugin keeps in a store beside host-local's files.
const indexDir = ".twill"

// turnLock is the file that whoever runs portmap for a pod of the network has locked.
func (n *node) turnLock() string { return filepath.Join(n.storeDir(), indexDir, "addons.lock") }

// reserved is who holds what, by address.
func (n *node) reserved() map[string]string {
	n.t.Helper()
	all := map[string]string{}
	entries, _ := os.ReadDir(n.storeDir())
	index, _ := os.ReadDir(filepath.Join(n.storeDir(), indexDir))
	for _, e := range index {
		var stat unix.Stat_t
		if err := unix.Stat(filepath.Join(n.storeDir(), indexDir, e.Name()), &stat); err == nil &&
			stat.Nlink == 1 && e.Name() != filepath.Base(n.turnLock()) {
			all[indexDir+"/"+e.Name()] = "of no address"
		}
	}
	for _, e := range entries {
		if e.Name() == "lock" || e.IsDir() || strings.HasPrefix(e.Name(), "last_reserved_ip.") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(n.storeDir(), e.Name()))
		if err != nil {
			n.t.Fatal(err)
		}
		all[e.Name()] = string(content)
	}
	return all
}

// mustBeClean fails the test if a reservation, a file or a veth end is left.
func (n *node) mustBeClean(pods ...string) {
	n.t.Helper()
	if r := n.reserved(); len(r) > 0 {
		n.t.Errorf("left in the store: %q", r)
	}
	for _, path := range append(pods, n.ns) {
		links, err := netlinkIn(n.t, path).LinkList()
		if err != nil {
			n.t.Fatal(err)
		}
		for _, l := range links {
			if l.Type() == "veth" {
				n.t.Errorf("left in %s: %s", path, l.Attrs().Name)
			}
		}
	}
}
