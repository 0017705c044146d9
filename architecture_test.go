package twill_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/twill-net/twill/"

// pkg is what "go list" says of one package; names of this module are without the module's.
type pkg struct {
	ImportPath   string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
}

// packages are this module's, and the standard library's names.
func packages(t *testing.T) (own []pkg, standard map[string]bool) {
	t.Helper()
	out, err := exec.Command("go", "list", "-e", "-deps", "-test", "-json=ImportPath,Standard,Imports,Deps,TestImports,XTestImports", "./...", "./clouds/...", "./test/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	standard = map[string]bool{"C": true}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch {
		case p.Standard:
			standard[p.ImportPath] = true
		case strings.HasPrefix(p.ImportPath, module) && !strings.ContainsAny(p.ImportPath, " ") && !strings.HasSuffix(p.ImportPath, ".test"):
			p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
			own = append(own, p)
		}
	}
	if len(own) == 0 || len(standard) < 50 {
		t.Fatalf("go list knows %d packages of this module and %d of the standard library", len(own), len(standard))
	}
	return own, standard
}

// within reports whether path is one of the folders, or in one that ends in "/...".
func within(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool {
		root, deep := strings.CutSuffix(f, "/...")
		return path == root || deep && strings.HasPrefix(path, root+"/")
	})
}

// arrows say who may import whom in this module; Documentation/architecture.md names the main ones. The
// first entry that fits a package decides; one that fits no entry may import everything.
var arrows = []struct {
	from string
	to   []string
}{
	{"subnet", []string{"netstate", "internal/jsonobject", "internal/smallfile"}},
	{"subnet/...", []string{"subnet", "netstate", "internal/atomicfile", "internal/certs", "internal/kubeclient", "internal/loop", "internal/redial",
		"internal/smallfile"}},
	{"netstate", nil},
	{"netstate/firewall", []string{"netstate", "internal/loop", "netstate/nfnl", "netstate/procfs", "internal/savedrule"}},
	{"netstate/filter", []string{"netstate", "netstate/filter/grammar", "netstate/nfnl"}},
	{"netstate/...", []string{"netstate", "netstate/attributes", "netstate/nfnl", "netstate/procfs", "netstate/rtnl", "netstate/secret", "internal/loop"}},
	{"backend/backendtest", nil},
	{"backend/cloudroute", []string{"backend", "cloud", "subnet", "netstate", "internal/atomicfile", "internal/smallfile"}},
	{"cloud", []string{"subnet", "internal/loop"}},
	{"cloud/...", []string{"cloud", "cloud/fake", "subnet"}},
	{"clouds/cmd/twilld", []string{"agent/daemon", "cloud", "clouds/..."}},
	{"clouds/...", []string{"cloud", "subnet", "internal/loop", "internal/smallfile"}},
	{"backend/...", []string{"backend/...", "subnet", "netstate", "netstate/secret", "internal/atomicfile", "internal/jsonobject", "internal/smallfile"}},
	{"internal/kubeclient", []string{"internal/certs", "internal/redial", "internal/smallfile"}},
	{"internal/droplog", []string{"internal/loop"}},
	{"internal/filewatch", []string{"internal/loop"}},
	{"internal/savedrule", []string{"internal/shell"}},
	{"internal/controlplane", []string{"netstate"}},
	{"internal/controlplane/controlplanetest", []string{"internal/controlplane"}},
	{"internal/host", []string{"internal/echo", "netstate"}},
	{"internal/...", nil},
	{"agent", []string{"subnet", "backend", "backend/transition", "netstate", "internal/causes", "internal/certs", "internal/jsonobject",
		"internal/loop", "internal/smallfile", "internal/steps", "agent/keptfile", "agent/masquerade", "agent/checksum", "agent/reach"}},
	{"agent/checksum", nil},
	{"agent/reach", []string{"internal/echo", "internal/loop", "netstate"}},
	// It takes the clouds from its caller.
	{"agent/daemon", []string{"agent/...", "backend/...", "cloud", "netstate/...", "policy/...", "subnet/...", "internal/causes", "internal/droplog", "internal/filewatch", "internal/loop", "internal/plain",
		"internal/jsonobject", "internal/kubeclient", "internal/smallfile", "internal/steps"}},
	{"agent/masquerade", []string{"internal/causes", "internal/filewatch", "internal/jsonobject", "internal/smallfile"}},
	{"agent/keptfile", []string{"internal/atomicfile", "internal/causes", "internal/filewatch", "internal/loop", "internal/smallfile"}},
	{"doctor", []string{"Documentation", "subnet", "backend", "netstate", "policy", "doctor/isolation", "doctor/rules", "doctor/locate",
		"doctor/service", "internal/shell", "packet"}},
	{"doctor/isolation", []string{"policy", "netstate", "netstate/filter/grammar"}},
	{"doctor/locate", []string{"netstate", "packet"}},
	{"doctor/service", []string{"doctor/locate", "netstate"}},
	{"doctor/connect", []string{"doctor/probe", "doctor/ruletrace", "doctor/service", "doctor/watch", "netstate/rtnl", "packet"}},
	{"doctor/capture", []string{"doctor/drops", "doctor/watch", "netstate/rtnl", "packet"}},
	{"doctor/probe", []string{"doctor/watch", "packet", "internal/echo"}},
	{"doctor/follow", []string{"doctor", "doctor/locate", "doctor/probe", "doctor/ruletrace", "doctor/unusual", "doctor/watch", "packet",
		"backend", "netstate", "netstate/rtnl", "subnet"}},
	{"packet", nil},
	{"policy", []string{"netstate", "subnet"}},
	{"policy/enforce", []string{"policy", "subnet", "netstate", "netstate/conntrack", "netstate/nflog", "packet", "internal/causes",
		"internal/loop"}},
	{"policy/announce/message", nil},
	{"policy/announce", []string{"policy", "policy/announce/message", "netstate", "internal/causes", "internal/loop"}},
	{"policy/policytest", []string{"policy", "netstate", "subnet", "internal/loop"}},
	{"policy/...", []string{"policy", "policy/manifest", "netstate", "internal/kubeclient", "internal/loop", "internal/smallfile"}},
	{"doctor/drops", nil},
	{"doctor/rules", []string{"internal/savedrule"}},
	{"doctor/rules/nft", []string{"doctor/rules", "netstate", "netstate/nfnl"}},
	{"doctor/ruletrace", []string{"doctor/locate", "doctor/rules", "internal/savedrule", "internal/shell", "netstate/nfnl"}},
	{"doctor/trust", nil},
	{"doctor/unusual", []string{"doctor/locate", "netstate", "netstate/attributes", "netstate/rtnl"}},
	{"doctor/traffic", []string{"doctor", "doctor/drops", "doctor/ruletrace", "doctor/watch", "packet"}},
	{"doctor/watch", []string{"doctor/drops", "doctor/locate", "doctor/ruletrace", "packet"}},
	{"plugin", []string{"plugin/...", "policy/announce/message", "subnet", "netstate", "netstate/rtnl", "internal/jsonobject", "internal/smallfile"}},
	{"plugin/internal/cnierr", nil},
	{"plugin/ipam", []string{"plugin/internal/...", "netstate", "internal/smallfile"}},
	{"plugin/delegate", []string{"plugin/internal/...", "plugin/ipam", "netstate/rtnl", "internal/savedrule", "internal/smallfile"}},
	{"plugin/...", []string{"plugin/internal/...", "plugin/ipam", "netstate", "netstate/rtnl", "internal/smallfile"}},
	{"ui", []string{"doctor", "lab/walk", "target"}},
	{"target", []string{"backend", "doctor", "doctor/capture", "doctor/connect", "doctor/facts", "doctor/follow", "doctor/locate", "doctor/probe", "doctor/service",
		"doctor/traffic", "doctor/watch", "internal/plain", "lab", "lab/choose", "lab/rebuild", "lab/walk", "netstate", "netstate/fastpath", "subnet"}},
	// It asks nodes through target alone: facts and packets are not its own.
	{"cmd/twillctl", []string{"backend/registry", "doctor", "doctor/service", "internal/plain", "lab/...", "netstate", "netstate/kernel", "policy",
		"policy/manifest", "subnet", "subnet/kube", "target", "ui"}},
	{"cmd/twill", []string{"plugin"}},
	{"cmd/twilld", []string{"agent/daemon"}},
}

// node are what runs on a node, and how it gets there. Neither they nor their tests import what explains a
// node, plays it or breaks it.
var (
	node  = []string{"agent/...", "backend/...", "cloud/...", "clouds/...", "cmd/twill", "cmd/twilld", "deploy", "internal/...", "netstate/...", "packet", "plugin/...", "policy/...", "subnet/..."}
	above = []string{"cmd/twillctl", "doctor/...", "lab/...", "target", "test/...", "ui"}
)

// machines play a machine or a control plane for labs and tests: they are on no node.
var machines = []string{"internal/controlplane/...", "internal/host"}

// forTests are for the packages that only tests import.
var forTests = []string{"internal/testall", "internal/testwait"}

// TestArchitecture asks go list once for all of it.
func TestArchitecture(t *testing.T) {
	own, standard := packages(t)
	t.Run("Arrows", func(t *testing.T) { checkArrows(t, own) })
	t.Run("Node", func(t *testing.T) { checkNode(t, own) })
	t.Run("StandardOnly", func(t *testing.T) { checkStandardOnly(t, own, standard) })
	t.Run("HeavyDependencies", func(t *testing.T) { checkHeavy(t, own) })
	t.Run("Owners", func(t *testing.T) { checkOwners(t, own) })
	t.Run("Silence", func(t *testing.T) { checkSilence(t, own) })
}

func checkArrows(t *testing.T, own []pkg) {
	seen := map[string]bool{}
	for _, p := range own {
		for _, a := range arrows {
			if !within(p.ImportPath, []string{a.from}) {
				continue
			}
			seen[a.from] = true
			allowed := a.to
			if slices.Contains(p.Imports, "testing") {
				allowed = slices.Concat(a.to, forTests)
			}
			for _, i := range p.Imports {
				if to, ours := strings.CutPrefix(i, module); ours && !within(to, allowed) {
					t.Errorf("%s imports %s: it may import %v of this module", p.ImportPath, to, a.to)
				}
			}
			break
		}
	}
	for _, must := range []string{"subnet", "netstate", "netstate/...", "backend/...", "agent", "plugin", "target", "cmd/twill", "cmd/twillctl"} {
		if !seen[must] {
			t.Errorf("there is no package %s: this test proves nothing about it", must)
		}
	}
}

func checkNode(t *testing.T, own []pkg) {
	for _, p := range own {
		if !within(p.ImportPath, node) {
			continue
		}
		for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if to, ours := strings.CutPrefix(i, module); ours && within(to, above) {
				t.Errorf("%s imports %s: what runs on a node, and its tests, do without %v", p.ImportPath, to, above)
			}
		}
	}
}

// checkStandardOnly: these are for everyone, so they bring nothing with them.
func checkStandardOnly(t *testing.T, own []pkg, standard map[string]bool) {
	for _, p := range own {
		if !within(p.ImportPath, []string{"subnet", "netstate", "policy/announce/message"}) {
			continue
		}
		for _, d := range p.Deps {
			if !standard[d] && d != module+"netstate" && d != module+"internal/jsonobject" && d != module+"internal/smallfile" {
				t.Errorf("%s depends on %s: it may use netstate and the standard library only", p.ImportPath, d)
			}
		}
	}
}

// heavy are dependencies that must not reach a package even through others.
var heavy = []struct {
	packages, never []string
	why             string
}{
	{[]string{"plugin/...", "cmd/twill"}, []string{"golang.zx2c4.com/...", "k8s.io/...", "sigs.k8s.io/...", "go.etcd.io/...", "github.com/google/nftables/...",
		"github.com/coreos/go-iptables/...", "github.com/prometheus/...", "google.golang.org/..."},
		"the CNI binary is started for every pod and has to be small"},
	{[]string{"internal/kubeclient", "policy/...", "subnet/kube", "agent/daemon", "clouds/cmd/twilld"}, []string{"k8s.io/api/...", "k8s.io/client-go/kubernetes/..."},
		"their types and clients are most of a Kubernetes program's size, and the agent runs on every node"},
	{[]string{"backend/...", "agent", "doctor"}, []string{"github.com/vishvananda/...", "github.com/mdlayher/..."},
		"it has to run on any machine, without a kernel"},
	{[]string{"cmd/twillctl", "lab/..."}, []string{"go.etcd.io/..."}, "it is in the agents' image, and etcd is a program of its own"},
	{[]string{"lab/..."}, []string{"text/template"}, "the linker would keep every method of every type in twillctl"},
}

func checkHeavy(t *testing.T, own []pkg) {
	for _, h := range heavy {
		for _, p := range own {
			for _, d := range p.Deps {
				if within(p.ImportPath, h.packages) && within(d, h.never) {
					t.Errorf("%s depends on %s: %s", p.ImportPath, d, h.why)
				}
			}
		}
	}
}

// owners are the only importers of a library, beside lab, test and machines, which play the machine; tests are those
// that use it in tests only.
var owners = []struct {
	library       string
	owners, tests []string
}{
	{"k8s.io/...", []string{"internal/kubeclient", "subnet/kube/...", "policy/..."}, []string{"deploy", "plugin", "agent/daemon"}}, // read manifests
	{"go.etcd.io/...", []string{"subnet/etcd/..."}, []string{"policy/kube", "subnet/kube"}},                                        // alters records under the API server
	{"github.com/vishvananda/...", []string{"netstate/conntrack", "netstate/wireguard", "netstate/kernel", "netstate/rtnl", "netstate/fastpath", "netstate/xfrm", "plugin/...", "doctor/unusual", "doctor/follow", "doctor/connect", "doctor/capture"}, []string{"agent/..."}}, // makes pods
	{"github.com/mdlayher/...", []string{"netstate/kernel", "netstate/firewall/...", "netstate/filter", "netstate/nflog", "netstate/nfnl", "netstate/wireguard", "doctor/ruletrace"}, nil},
	{"github.com/strongswan/...", []string{"backend/ipsec"}, nil},
	{"golang.zx2c4.com/wireguard/wgctrl", []string{"netstate/wireguard"}, []string{"backend/wireguard"}},
	{"github.com/google/nftables/...", []string{"netstate/firewall/...", "netstate/filter", "netstate/nfnl", "doctor/ruletrace", "doctor/rules/nft"}, nil},
	{"github.com/containernetworking/...", []string{"plugin/...", "cmd/twill", "doctor/follow"}, []string{"agent/..."}},
	{"github.com/cilium/ebpf/...", []string{"doctor/drops", "doctor/unusual", "netstate/fastpath"}, nil},
	{"github.com/aws/...", []string{"clouds/aws"}, nil},
	{"github.com/spf13/cobra", []string{"cmd/..."}, nil},
	{"golang.org/x/oauth2/...", []string{"clouds/gce"}, nil},
	{"github.com/gopacket/gopacket/...", nil, []string{"doctor/capture"}},
	{"github.com/aliyun/...", []string{"clouds/ali"}, nil},
}

func checkOwners(t *testing.T, own []pkg) {
	for _, p := range own {
		if within(p.ImportPath, slices.Concat(machines, []string{"lab/...", "test/...", "tools/..."})) {
			continue
		}
		for _, o := range owners {
			refuseImports(t, p, p.Imports, o.library, o.owners)
			refuseImports(t, p, slices.Concat(p.TestImports, p.XTestImports), o.library, slices.Concat(o.owners, o.tests))
		}
	}
}

func refuseImports(t *testing.T, p pkg, imports []string, library string, owners []string) {
	for _, i := range imports {
		if within(i, []string{library}) && !within(p.ImportPath, owners) {
			t.Errorf("%s imports %s: only %v may", p.ImportPath, i, owners)
		}
	}
}

// checkSilence: libraries below agent do not log. A Runner logs to the logger that its Env has.
func checkSilence(t *testing.T, own []pkg) {
	for _, p := range own {
		for _, i := range p.Imports {
			if within(p.ImportPath, []string{"backend/..."}) && i == "log/slog" {
				continue
			}
			if within(p.ImportPath, []string{"backend/...", "netstate/...", "plugin/...", "subnet"}) && within(i, []string{"log/..."}) {
				t.Errorf("%s imports %s: libraries below agent do not log", p.ImportPath, i)
			}
		}
	}
}

// TestLinker: with text/template in the program the linker keeps every exported method of every type,
// because a template may call it by its name. The agent's file is then a quarter larger, and so is what of
// it is in memory.
func TestLinker(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	const tag = "grpcnotrace"
	if !regexp.MustCompile(`(?m)^TAGS += `+tag+`$`).Match(makefile) || !strings.Contains(string(makefile), "go build -trimpath -tags $(TAGS) ") {
		t.Errorf("make build does not give the tag %s", tag)
	}
	out, err := exec.Command("go", "list", "-deps", "-tags", tag, "./clouds/cmd/twilld").Output()
	if err != nil {
		t.Fatalf("go list -tags %s: %v", tag, err)
	}
	deps := strings.Fields(string(out))
	for _, never := range []string{"text/template", "html/template"} {
		if slices.Contains(deps, never) {
			t.Errorf("built with the tag %s, twilld depends on %s: find out through whom with go list -deps", tag, never)
		}
	}
	if !slices.Contains(deps, "net/http") {
		t.Errorf("go list knows %d dependencies, and not net/http: this test proves nothing", len(deps))
	}
}

// TestDumps: the kernel may interrupt a dump, so none is made outside rtnl.Retry. The plugin's requests are
// made in functions that Retry calls, and the lab may fail.
func TestDumps(t *testing.T) {
	found := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "plugin" || path == "lab" || path == "test" || path == "tools" || strings.HasPrefix(path, ".") && path != "."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, 0)
		if err != nil || !importsNetlink(f) {
			return err
		}
		for pos, inDump := range dumps(f) {
			found++
			if !inDump {
				t.Errorf("%s: a netlink list outside of rtnl.Retry: the kernel may interrupt it", files.Position(pos))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 5 {
		t.Errorf("%d netlink lists found, there are more: this test does not see them", found)
	}
}

func importsNetlink(f *ast.File) bool {
	return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"github.com/vishvananda/netlink"` })
}

// dumps are the places where a function named …List… is used, or a dump request is made, and whether they are
// inside a call of rtnl.Retry.
func dumps(f *ast.File) map[token.Pos]bool {
	places := map[token.Pos]bool{}
	var stack []ast.Node
	ast.Inspect(f, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		stack = append(stack, n)
		s, ok := n.(*ast.SelectorExpr)
		if ok && (listName(s.Sel.Name) || s.Sel.Name == "NLM_F_DUMP") {
			places[n.Pos()] = slices.ContainsFunc(stack, isRetry)
		}
		return true
	})
	return places
}

func listName(name string) bool {
	for _, kind := range []string{"Link", "Addr", "Neigh", "NeighProxy", "Route", "Rule", "Bridge", "Qdisc"} {
		if strings.HasPrefix(name, kind+"List") || strings.HasPrefix(name, kind+"VlanList") {
			return true
		}
	}
	return false
}

func isRetry(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == "Retry"
}

// TestWaits: the product never waits for nothing but time to pass: no time.Sleep, and no receive from a
// timer outside of a select that has another case. Tests may sleep, where neither a condition nor
// testing/synctest serves, but say so.
func TestWaits(t *testing.T) {
	found := 0
	for _, path := range sourceFiles(t, ".go") {
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ours := !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(path, "test/") && !strings.HasPrefix(path, "tools/")
		for pos, what := range waits(f) {
			found++
			if ours || what != "time.Sleep" {
				t.Errorf("%s: %s: wait for a context, a channel or a condition", files.Position(pos), what)
			}
		}
	}
	if found < 10 {
		t.Errorf("%d sleeps found, there are more: this test does not see them", found)
	}
}

// waits are the places where f calls time.Sleep, or receives from a timer and nothing else. A ticker paces a loop.
func waits(f *ast.File) map[token.Pos]string {
	places, timers := map[token.Pos]string{}, map[string]bool{}
	var inSelect []ast.Node
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectStmt:
			for _, c := range n.Body.List {
				if comm := c.(*ast.CommClause).Comm; comm != nil && len(n.Body.List) > 1 {
					inSelect = append(inSelect, comm)
				}
			}
		case *ast.AssignStmt:
			if name, ok := n.Lhs[0].(*ast.Ident); ok && isTimer(n.Rhs[0]) {
				timers[name.Name] = true
			}
		case *ast.SelectorExpr:
			if isTime(n, "Sleep") {
				places[n.Pos()] = "time.Sleep"
			}
		case *ast.UnaryExpr:
			other := slices.ContainsFunc(inSelect, func(c ast.Node) bool { return c.Pos() <= n.Pos() && n.End() <= c.End() })
			if n.Op == token.ARROW && !other && fromTimer(n.X, timers) {
				places[n.Pos()] = "a sleep, spelled as a receive"
			}
		}
		return true
	})
	return places
}

func isTime(e ast.Expr, names ...string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || !slices.Contains(names, s.Sel.Name) {
		return false
	}
	pkg, ok := s.X.(*ast.Ident)
	return ok && pkg.Name == "time"
}

func isTimer(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && isTime(call.Fun, "After", "Tick", "NewTimer")
}

// fromTimer reports whether e is a timer's channel: a call, a variable of timers, or the field C of either.
func fromTimer(e ast.Expr, timers map[string]bool) bool {
	if s, ok := e.(*ast.SelectorExpr); ok && s.Sel.Name == "C" {
		e = s.X
	}
	name, ok := e.(*ast.Ident)
	return isTimer(e) || ok && timers[name.Name]
}
