//go:build long

package plugin

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
)

// TestLongContainerd has a real containerd create and remove 200 pod sandboxes through its CRI API, 20 at a time,
// ten of them with a host port, twice. All have addresses of their own, and nothing is left.
func TestLongContainerd(t *testing.T) {
	n := newNode(t, "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.4.1/22\n"+envV6)
	socket := startContainerd(t, n)
	for round := range 2 {
		c := exec.Command(filepath.Join(containerdDir(t), "sandboxes"), "-socket", socket, "-n", "200", "-parallel",
			"20", "-ports", "10",
			"-cgroup", fmt.Sprintf("/twp-%d", os.Getpid()), "-logs", n.dir, "-prefix", fmt.Sprintf("r%d", round))
		var stderr bytes.Buffer
		c.Stderr = &stderr
		out, err := c.Output()
		if err != nil {
			t.Fatalf("round %d: %v: %s\n%s", round, err, stderr.Bytes(), logTail(n))
		}
		var r struct {
			Addresses                              []netip.Addr
			CreateP50, RemoveP50, CreateAll, Total float64
		}
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(r.Addresses, netip.Addr.Compare)
		if distinct := len(slices.Compact(slices.Clone(r.Addresses))); distinct != 200 ||
			!prefix("10.244.4.0/22").Contains(r.Addresses[0]) {
			t.Errorf("round %d: %d distinct addresses of 200, the first %s", round, distinct, r.Addresses[0])
		}
		n.mustBeClean()
		if left := rules(t, n.ns); strings.Contains(left, "CNI-DN-") {
			t.Errorf("round %d: rules are left:\n%s", round, left)
		}
		t.Logf("round %d: creating a sandbox takes %.0f ms p50, removing one %.0f ms; all 200 %.1f s", round,
			r.CreateP50, r.RemoveP50, r.Total/1000)
	}
}

// TestLongContainerdReady asks a real containerd, over CRI, whether the network is ready, as kubelet does: it is while all
// addresses are in use, and whatever lies among the reservations. Without a lease it is not.
func TestLongContainerdReady(t *testing.T) {
	env := strings.Replace(envV4, "10.244.1.1/24", "10.244.1.1/29", 1)
	n := newNode(t, env)
	socket := startContainerd(t, n)
	ask := func(flags ...string) (r struct {
		Addresses    []netip.Addr
		NetworkReady bool
		Message      string
	}, err error) {
		t.Helper()
		c := exec.Command(filepath.Join(containerdDir(t), "sandboxes"), append([]string{"-socket", socket, "-logs", n.dir,
			"-cgroup", fmt.Sprintf("/twp-%d", os.Getpid())}, flags...)...)
		var stderr bytes.Buffer
		c.Stderr = &stderr
		out, err := c.Output()
		if err != nil {
			return r, fmt.Errorf("%w: %s", err, stderr.Bytes())
		}
		return r, json.Unmarshal(out, &r)
	}
	mustBe := func(ready bool, when string) {
		t.Helper()
		if r, err := ask("-status"); err != nil || r.NetworkReady != ready {
			t.Errorf("%s: the network is ready %t, %q, %v; want %t", when, r.NetworkReady, r.Message, err, ready)
		}
	}
	create := func(i int) error {
		_, err := ask("-n", "1", "-keep", "-prefix", fmt.Sprint("pod", i))
		return err
	}
	testwait.Nil(t, "the network is ready", func() error {
		r, err := ask("-status")
		if err == nil && !r.NetworkReady {
			err = errors.New(r.Message)
		}
		return err
	})
	for i := range 5 {
		if err := create(i); err != nil {
			t.Fatal(err)
		}
		mustBe(true, fmt.Sprintf("%d of 5 addresses are in use", i+1))
	}
	if err := create(5); err == nil || !strings.Contains(err.Error(), "all 5 addresses of 10.244.1.0/29") {
		t.Errorf("a pod without an address: %v", err)
	}
	mustBe(true, "a pod got no address")
	networks := filepath.Join(n.dir, "networks")
	for _, name := range []string{"backup.tgz", "cbr0/10.244.1.9", "cbr0/note~", "net1", "net2/10.244.1.4", "net2/10.1.1.1"} {
		for _, e := range entries {
			path := filepath.Join(networks, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), e.make(path)); err != nil {
				t.Fatal(err)
			}
			mustBe(true, name+" is a "+e.what)
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.lease(env + "TWILL_BOOT_ID=6fd34ea3-0f2a-4a43-b2bb-2e3fd2e3a4c1\n")
	mustBe(false, "the lease is of an earlier boot")
	n.lease(env)
	mustBe(true, "the lease is back")
	if _, err := ask("-clear"); err != nil {
		t.Error(err)
	}
	n.mustBeClean()
}

// containerdDir is where the repository's tools put containerd, which are built if need be.
func containerdDir(t *testing.T) string {
	t.Helper()
	tools, err := filepath.Abs("../tools/containerd")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(tools, "..", "..", "bin", "containerd")
	c := exec.Command(filepath.Join(tools, "build"))
	c.Dir = tools
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build containerd: %v\n%s", err, text)
	}
	c = exec.Command("go", "build", "-trimpath", "-o", out+"/", "./sandboxes", "./pause")
	c.Dir, c.Env = tools, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build the sandboxes' programs: %v\n%s", err, text)
	}
	return filepath.Clean(out)
}

const containerdConfig = `version = 3
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.blockfile"]
[grpc]
  address = "%[1]s/containerd.sock"
[ttrpc]
  address = "%[1]s/containerd.sock.ttrpc"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["%[2]s"]
    conf_dir = "%[1]s/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "twill.test/pause:1"
`

// startContainerd starts containerd as the node's runtime, with Twill's conflist, and gives its socket.
func startContainerd(t *testing.T, n *node) string {
	t.Helper()
	buildUpstream(t, "main/loopback")
	dir, programs := filepath.Join(n.dir, "containerd"), containerdDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "net.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"config.toml": fmt.Sprintf(containerdConfig, dir, binaries),
		"net.d/10-twill.conflist": conflist(n)}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "containerd.sock")
	c := exec.Command(filepath.Join(programs, "containerd"), "--config", filepath.Join(dir, "config.toml"))
	c.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH")+":/usr/sbin:/sbin")
	log, err := os.Create(filepath.Join(n.dir, "containerd.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c.Stdout, c.Stderr = log, log
	inside(t, n.ns, c.Start)
	t.Cleanup(func() { stopContainerd(t, c, dir) })
	image := filepath.Join(n.dir, "pause.tar")
	if err := os.WriteFile(image, pauseImage(t, filepath.Join(programs, "pause")), 0o644); err != nil {
		t.Fatal(err)
	}
	testwait.Nil(t, "import the sandbox image", func() error {
		out, err := exec.Command(filepath.Join(programs, "ctr"), "--address", socket, "-n", "k8s.io", "images",
			"import", image).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s\n%s", err, out, logTail(n))
		}
		return nil
	})
	return socket
}

func conflist(n *node) string {
	var conf map[string]any
	if err := json.Unmarshal(n.config(map[string]any{"capabilities": map[string]bool{"portMappings": true,
		"bandwidth": true}}), &conf); err != nil {
		n.t.Fatal(err)
	}
	list, err := json.Marshal(map[string]any{"cniVersion": "1.0.0",
		"cniVersions": []string{"0.4.0", "1.0.0", "1.1.0"}, "name": "cbr0", "plugins": []any{conf}})
	if err != nil {
		n.t.Fatal(err)
	}
	return string(list)
}

// stopContainerd ends it, what it left running, and its mounts.
func stopContainerd(t *testing.T, c *exec.Cmd, dir string) {
	_ = c.Process.Signal(syscall.SIGTERM)
	_ = c.Wait()
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range processes {
		line, err := os.ReadFile(p)
		if err != nil || !bytes.Contains(line, []byte(dir+"/containerd.sock")) {
			continue
		}
		pid := 0
		if _, err := fmt.Sscanf(p, "/proc/%d/", &pid); err == nil {
			t.Errorf("a shim was left: %q", line)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir) {
			_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
		}
	}
	_ = os.Remove(fmt.Sprintf("/sys/fs/cgroup/twp-%d", os.Getpid()))
}

func logTail(n *node) string {
	data, _ := os.ReadFile(filepath.Join(n.dir, "containerd.log"))
	return string(data[max(0, len(data)-4000):])
}

// pauseImage packs the program as an image in docker's archive format: a layer, a config and a manifest.
// See https://github.com/moby/docker-image-spec/blob/main/v1.2.md
func pauseImage(t *testing.T, program string) []byte {
	t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	layer := packed(t, "pause", data)
	config := toJSON(map[string]any{"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Entrypoint": []string{"/pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}}})
	manifest := toJSON([]map[string]any{{"Config": digest(config) + ".json",
		"RepoTags": []string{"twill.test/pause:1"}, "Layers": []string{"layer.tar"}}})
	return packed(t, "layer.tar", layer, digest(config)+".json", []byte(config), "manifest.json", []byte(manifest))
}

func packed(t *testing.T, files ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		data := files[i+1].([]byte)
		if err := w.WriteHeader(&tar.Header{Name: files[i].(string), Mode: 0o755, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
