//go:build long

package plugin

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// suite is one of upstream's sets of specs, run against this plugin. None of its files is in this repository:
// they are taken from the module cache, and compiled with testdata/suites/shim.go.txt.
type suite struct {
	pkg, source string            // in upstream's module, and the file there that has the plugin's functions
	rename      string            // functions of that file that the shim replaces
	edit        map[string]string // in the specs: what they say, and what they have to say here
	focus       string            // the specs to run, if not all
	apart       []string          // specs that cannot apply
	env         []string
}

// oldVersions are of before CNI 0.3.1, which this plugin does not speak.
const oldVersions = `\[0\.[12]\.0\]|\[0\.3\.0\]`

func TestLongHostLocalSpecs(t *testing.T) {
	suite{
		pkg: "plugins/ipam/host-local", source: "main.go", rename: "cmdAdd|cmdDel|cmdCheck",
		edit: map[string]string{"failed to allocate all requested IPs: 10.1.2.": "addresses 10.1.2."}, // the error's words
		apart: []string{oldVersions,
			"ignores whitespace in disk files"}, // a container id with spaces in it does not come through the environment
		env: []string{"SHIM_PROGRAM=" + testBinary(t), "TWILL_TEST_IPAM=1"},
	}.run(t)
}

func TestLongBridgeSpecs(t *testing.T) {
	lease := filepath.Join(t.TempDir(), "subnet.env")
	if err := os.WriteFile(lease,
		[]byte("FLANNEL_NETWORK=10.1.2.0/24\nFLANNEL_SUBNET=10.1.2.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	suite{
		pkg: "plugins/main/bridge", source: "bridge.go", rename: "cmdAdd|cmdDel|cmdCheck|cmdStatus",
		edit: map[string]string{`It("deconfigures an unconfigured bridge`: `It("[" + ver + "] deconfigures an unconfigured bridge`},
		apart: []string{oldVersions,
			"vlan",                                // not a setting of Twill: unknown keys warn
			"l2 bridge",                           // a pod without an address
			"port-isolation|veth peer state down", // pods without an address too; TestPortIsolation instead
			"ipMasq rules",                        // the agent masquerades for all pods
			"mac spoof-check",                     // looks for upstream's rules, Twill locks the port: TestMACSpoofCheck instead
			"checks ip release in case of error",  // injects its error by a variable: TestRollback, TestKillAnywhere instead
			"stable MAC addresses",                // of a bridge whose address follows its ports: Twill's is pinned
		},
		env: []string{"SHIM_PROGRAM=" + filepath.Join(binaries, "twill"), "SHIM_LEASE=" + lease,
			"CNI_PATH=" + binaries},
	}.run(t)
}

// TestLongPortmapSpecs forwards ports to pods of this plugin, which runs portmap for them.
func TestLongPortmapSpecs(t *testing.T) {
	lease := filepath.Join(t.TempDir(), "subnet.env")
	if err := os.WriteFile(lease,
		[]byte("FLANNEL_NETWORK=172.16.31.0/24\nFLANNEL_SUBNET=172.16.31.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	suite{
		pkg: "plugins/meta/portmap",
		edit: map[string]string{
			`"type": "ptp",`:  `"type": "twill", "capabilities": {"portMappings": true}, "subnetFile": "` + lease + `",`,
			`"ipMasq": true,`: ``,
			`},
			{
				"type": "portmap",
				"capabilities": {
					"portMappings": true
				}
			}`: `}`,
		},
		apart: []string{`\[0\.3\.0\]`},
		focus: "portmap integration tests",
	}.run(t)
}

func testBinary(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run compiles the specs and runs them in a network namespace of their own.
func (s suite) run(t *testing.T) {
	binary, ns := s.compile(t), newNamespace(t)
	sweepSpecs(t)
	inside(t, ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	report := filepath.Join(t.TempDir(), "report.json")
	c := exec.Command(binary, "-ginkgo.json-report="+report, "-ginkgo.no-color",
		"-ginkgo.skip="+strings.Join(s.apart, "|"), "-ginkgo.focus="+s.focus)
	c.Dir = filepath.Dir(binary)
	c.Env = append(os.Environ(), "PATH="+binaries+":"+os.Getenv("PATH")+":/usr/sbin:/sbin")
	c.Env = append(c.Env, s.env...)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c.Stdout, c.Stderr = log, log
	inside(t, ns, c.Start)
	err = c.Wait()
	counts := s.report(t, report)
	text, _ := os.ReadFile(log.Name())
	if err != nil && counts["failed"] == 0 || counts["passed"] == 0 {
		t.Fatalf("%v\n%s", err, text[max(0, len(text)-5000):])
	}
	t.Logf("%s: %d specs passed, %d failed, %d do not apply", s.pkg, counts["passed"], counts["failed"],
		counts["skipped"])
}

// sweepSpecs removes, when the test ends, the network namespaces that specs which were interrupted leave
// behind.
func sweepSpecs(t *testing.T) {
	list := func() []string {
		paths, _ := filepath.Glob("/run/netns/cnitest-*")
		return paths
	}
	before := list()
	t.Cleanup(func() {
		for _, path := range list() {
			if slices.Contains(before, path) {
				continue
			}
			if err := errors.Join(unix.Unmount(path, unix.MNT_DETACH), os.Remove(path)); err != nil {
				t.Error(err)
			}
		}
	})
}

// report counts the specs by their end, and fails the test for each that failed.
func (s suite) report(t *testing.T, path string) map[string]int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var reports []struct {
		SpecReports []struct {
			LeafNodeType, LeafNodeText, State string
			Failure                           struct{ Message, Location any }
		}
	}
	if err := json.Unmarshal(data, &reports); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, r := range reports {
		for _, spec := range r.SpecReports {
			if spec.LeafNodeType != "It" {
				continue
			}
			state := spec.State
			if state == "panicked" {
				state = "failed"
			}
			counts[state]++
			if state == "failed" {
				t.Errorf("%s: %v %v", spec.LeafNodeText, spec.Failure.Message, spec.Failure.Location)
			}
		}
	}
	return counts
}

// compile copies upstream's module, puts the shim in the package, and compiles its tests.
func (s suite) compile(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/containernetworking/plugins").Output()
	if err != nil {
		t.Fatal(err)
	}
	module := filepath.Join(t.TempDir(), "plugins")
	if out, err := exec.Command("cp", "-r", "--no-preserve=mode", strings.TrimSpace(string(out)),
		module).CombinedOutput(); err != nil {
		t.Fatalf("copy upstream's module: %v: %s", err, out)
	}
	dir := filepath.Join(module, s.pkg)
	if s.rename != "" {
		rewrite(t, filepath.Join(dir, s.source), regexp.MustCompile(`(?m)^func (`+s.rename+`)\(`), "func upstream_$1(")
		shim, err := os.ReadFile("testdata/suites/shim.go.txt")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "shim.go"), shim, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	specs, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, file := range specs {
		for old, now := range s.edit {
			rewrite(t, file, regexp.MustCompile(regexp.QuoteMeta(old)), now)
		}
	}
	binary := filepath.Join(dir, "specs.test")
	c := exec.Command("go", "test", "-c", "-o", binary, ".")
	c.Dir, c.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", s.pkg, err, out)
	}
	return binary
}

func rewrite(t *testing.T, path string, old *regexp.Regexp, now string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, old.ReplaceAll(data, []byte(now)), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
