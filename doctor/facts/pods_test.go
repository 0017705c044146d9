package facts

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testns"
	"github.com/twill-net/twill/netstate/kernel"
)

// entry is what libcni's cache has of a pod.
const entry = `{"kind":"cniCacheV1","containerId":%q,"config":"e30=","ifName":"eth0","networkName":%q,"netns":%q,
"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","web"],["K8S_POD_NAME","front"]],"result":{"cniVersion":"1.0.0",
"interfaces":[{"name":"cni0"},{"name":%q},{"name":"bwp1"},{"name":"eth0","sandbox":"/x"}],"ips":[{"interface":2,"address":%q}]}}`

// cache writes entries, by their files, and returns the cache's directory.
func cache(t *testing.T, entries map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "results"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range entries {
		if err := os.WriteFile(filepath.Join(dir, "results", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// node moves the test into a namespace of its own with a pod, and returns what looks at it, and the pod's process.
func node(t *testing.T) (g *gathering, pid int) {
	t.Helper()
	testns.Enter(t)
	pod := exec.CommandContext(t.Context(), "sleep", "60")
	pod.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := pod.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = pod.Process.Kill(), pod.Wait() })
	run(t, "ip link add cni0 type bridge")
	run(t, "ip link add bwp1 type bridge")
	run(t, fmt.Sprintf("ip link add veth1 master cni0 type veth peer name eth0 netns %d", pod.Process.Pid))
	k, err := kernel.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return &gathering{Facts: &doctor.Facts{Bridge: "cni0", Reservations: doctor.Reservations{Dir: "/x/cbr0"}}, kernel: k},
		pod.Process.Pid
}

func run(t *testing.T, command string) {
	t.Helper()
	words := strings.Fields(command)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// lookForCutOff returns the sandboxes that are found without an interface, and what was not read.
func (g *gathering) lookForCutOff(t *testing.T) ([]string, error) {
	t.Helper()
	if err := g.ports(); err != nil {
		t.Fatal(err)
	}
	g.CutOff = nil
	err := g.cutOff(t.Context())
	var found []string
	for _, c := range g.CutOff {
		found = append(found, c.Sandbox)
	}
	slices.Sort(found)
	return found, err
}

// TestCutOff: a pod is found without an interface if the runtime made one, it is here under no name, and the pod's
// namespace exists.
func TestCutOff(t *testing.T) {
	g, pid := node(t)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	space := fmt.Sprintf("/proc/%d/ns/net", pid)
	g.options.CNICache = cache(t, map[string]string{
		"cbr0-a-eth0": fmt.Sprintf(entry, "a", "cbr0", space, "veth1", "10.244.1.2/24"),
		"cbr0-b-eth0": fmt.Sprintf(entry, "b", "cbr0", plain, "veth2", "10.244.1.3/24"),             // its namespace ended
		"cbr0-c-eth0": fmt.Sprintf(entry, "c", "cbr0", plain+".none", "veth3", "10.244.1.4/24"),     // and is deleted
		"mine-d-eth0": fmt.Sprintf(entry, "d", "mine", space, "veth4", "10.244.1.5/24"),             // of another network
		"cbr0-e-eth0": `{"containerId":"e","networkName":"cbr0","netns":"` + space + `"}`,           // of a plugin without interfaces
		"cbr0-f-eth0": `{"cniVersion":"0.3.1","interfaces":[{"name":"veth5"}],"ips":[{"address":0}`, // of an old libcni
	})
	if got, err := g.lookForCutOff(t); got != nil || err != nil {
		t.Errorf("before: %v, %v", got, err)
	}
	run(t, "ip link set veth1 name renamed")
	run(t, fmt.Sprintf("nsenter -t %d -n ip addr add 10.244.1.2/24 dev eth0", pid))
	if got, err := g.lookForCutOff(t); got != nil || err != nil {
		t.Errorf("renamed: %v, %v", got, err)
	}
	run(t, "ip link del renamed")
	if got, err := g.lookForCutOff(t); !slices.Equal(got, []string{"a"}) || err != nil {
		t.Errorf("deleted: %v, %v", got, err)
	}
	if c := g.CutOff[0]; c.Namespace != "web" || c.Name != "front" || c.Dev != "veth1" ||
		!slices.Equal(c.Addrs, []netip.Addr{netip.MustParseAddr("10.244.1.2")}) {
		t.Errorf("deleted: %+v", c)
	}
}

// TestCutOffInAContainer: where the files of namespaces are not seen, a pod is found if the kernel has as many
// namespaces without an interface as there are pods without one, and else it is said how many there are.
func TestCutOffInAContainer(t *testing.T) {
	g, _ := node(t)
	one := map[string]string{"cbr0-a-eth0": fmt.Sprintf(entry, "a", "cbr0", "/not/here/a", "veth1", "10.244.1.2/24")}
	g.options.CNICache = cache(t, map[string]string{"cbr0-b-eth0": fmt.Sprintf(entry, "b", "cbr0", "/not/here/b", "veth2", "10.244.1.3/24")})
	if got, err := g.lookForCutOff(t); got != nil || err != nil {
		t.Errorf("a pod that ended without DEL: %v, %v", got, err)
	}
	run(t, "ip link show") // the kernel numbers a namespace when it tells somebody of it
	run(t, "ip link del veth1")
	g.options.CNICache = cache(t, one)
	if got, err := g.lookForCutOff(t); !slices.Equal(got, []string{"a"}) || err != nil {
		t.Errorf("deleted: %v, %v", got, err)
	}
	one["cbr0-b-eth0"] = fmt.Sprintf(entry, "b", "cbr0", "/not/here/b", "veth2", "10.244.1.3/24")
	g.options.CNICache = cache(t, one)
	if got, err := g.lookForCutOff(t); got != nil || err == nil || !strings.Contains(err.Error(), "1 of 2 pods") {
		t.Errorf("one of two: %v, %v", got, err)
	}
}

// TestCutOffOfAMoment: a pod whose DEL ends while the doctor waits is not found.
func TestCutOffOfAMoment(t *testing.T) { synctest.Test(t, testCutOffOfAMoment) }

func testCutOffOfAMoment(t *testing.T) {
	g, pid := node(t)
	g.options.CNICache = cache(t, map[string]string{
		"cbr0-a-eth0": fmt.Sprintf(entry, "a", "cbr0", fmt.Sprintf("/proc/%d/ns/net", pid), "veth1", "10.244.1.2/24")})
	run(t, "ip link del veth1")
	ended := make(chan error, 1)
	file := filepath.Join(g.options.CNICache, "results", "cbr0-a-eth0")
	time.AfterFunc(podSettles/3, func() { ended <- os.Remove(file) })
	if got, err := g.lookForCutOff(t); got != nil || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
