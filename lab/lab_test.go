package lab

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/twill-net/twill/subnet"
)

var update = flag.Bool("update", false, "write the golden files")

func TestSpecSaysWhatIsWrong(t *testing.T) {
	for want, spec := range map[string]Spec{
		`name "A-b": want lower-case letters and digits, a letter first`: {Name: "A-b"},
		`nodes 155: want 1 to 154`:                                       {Nodes: 155},
		`underlay "l4": want l2, l3`:                                     {Underlay: "l4"},
		`family "5": want 4, 6, dual`:                                    {Family: "5"},
		`proxy "ipvs": want iptables, nftables`:                          {Proxy: "ipvs", Store: Kube},
		`proxy iptables: kube-proxy follows the Services of an API server: want the store kube, not file`: {Proxy: "iptables"},
		`store "disk": want file, etcd, kube`:                                          {Store: "disk"},
		`direct routing: backend host-gw has no such option, only vxlan and ipip have`: {Backend: "host-gw", DirectRouting: true},
		`agent for "node4": want one of [node1 node2 node3]`:                           {Agents: map[string]string{"node4": "/x"}},
		`node name "Master": want at most ten lower-case letters`:                      {Names: []string{"Master"}},
		`nodes [node2 node2 node3]: want different names`:                              {Names: []string{"node2"}},
		`site of "node9": want one of [node1 node2 node3]`:                             {Sites: map[string]Site{"node9": {}}},
		`site of "": NAT is for IPv4 only, and the family is dual`:                     {Family: Dual, Sites: map[string]Site{"": {NAT: true}}},
		`site of "": two interfaces want the family dual, not 4`:                       {Sites: map[string]Site{"": {Split: true}}},
		`site of "node2": want two interfaces on all nodes or on none`:                 {Family: Dual, Sites: map[string]Site{"node1": {Split: true}}},
		`site of "": MTU 100: want 1280 to 9000`:                                       {Sites: map[string]Site{"": {MTU: 100}}},
		`net config: `:                                                                 {NetConf: []byte(`{"Network":"10.0.0.0/33"}`)},
	} {
		if err := spec.withDefaults().check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", spec, err, want)
		}
	}
	if s := (Spec{}).withDefaults(); s.Store != File {
		t.Errorf("the store of a lab that was not told one is %s: want the one that needs no other program", s.Store)
	}
	for _, spec := range []Spec{{}, {Pods: -1}, {Family: Dual, Underlay: L3, DirectRouting: true, Agents: map[string]string{"": "/x", "node3": "/y"}}} {
		if err := spec.withDefaults().check(); err != nil {
			t.Errorf("%+v: %v", spec, err)
		}
	}
}

// TestAgentWithoutClouds: a lab of a cloud says what is missing before anything is made.
func TestAgentWithoutClouds(t *testing.T) {
	dir := t.TempDir()
	source, err := txtar.FS(txtar.Parse([]byte(agents)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, source); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{
		"clouds/cmd/twilld": "",
		"cmd/twilld":        ": backend gce is a cloud's, and this twilld was built without clouds: take that of make build, or of the image ghcr.io/twill-net/twill",
	} {
		spec := Spec{Backend: "gce", Programs: Programs{Agent: filepath.Join(dir, program, "twilld")}}.withDefaults()
		build := exec.CommandContext(t.Context(), "go", "build", "-o", spec.Programs.Agent, "./"+program)
		build.Dir, build.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if want != "" {
			want = spec.Programs.Agent + want
		}
		if err := spec.checkAgent(); fmt.Sprint(err) != cmp.Or(want, "<nil>") {
			t.Errorf("the agent %s: %v, want %q", program, err, want)
		}
		spec.Backend = "vxlan"
		if err := spec.checkAgent(); err != nil {
			t.Errorf("no cloud: %v", err)
		}
	}
}

// agents are two programs of modules as Twill's are, of which one contains an SDK.
const agents = `
-- go.mod --
module github.com/twill-net/twill
require github.com/aws/aws-sdk-go-v2 v1.0.0
replace github.com/aws/aws-sdk-go-v2 => ./aws
-- aws/go.mod --
module github.com/aws/aws-sdk-go-v2
-- aws/aws.go --
package aws
-- cmd/twilld/main.go --
package main

func main() {}
-- clouds/cmd/twilld/main.go --
package main

import _ "github.com/aws/aws-sdk-go-v2"

func main() {}
`

func TestNetConfIsWhatAgentsUnderstand(t *testing.T) {
	for _, family := range []string{IPv4, IPv6, Dual} {
		spec := Spec{Family: family, DirectRouting: true}.withDefaults()
		data, err := spec.netConf()
		if err != nil {
			t.Fatal(err)
		}
		config, err := subnet.ParseConfig(data)
		if err != nil || len(config.Warnings) > 0 || len(config.Pools) != len(spec.Families()) || config.Backend != "vxlan" {
			t.Errorf("family %s: %+v, %v\n%s", family, config, err, data)
		}
	}
}

// TestNetConfHasAKey: each lab of ipsec has a key of its own, as long as the backend wants it.
func TestNetConfHasAKey(t *testing.T) {
	var last string
	for range 2 {
		data, err := Spec{Backend: "ipsec"}.withDefaults().netConf()
		if err != nil {
			t.Fatal(err)
		}
		var conf struct{ Backend struct{ PSK string } }
		if err := json.Unmarshal(data, &conf); err != nil || len(conf.Backend.PSK) < 96 || conf.Backend.PSK == last {
			t.Errorf("%v: %s", err, data)
		}
		last = conf.Backend.PSK
	}
}

func TestPodCIDRs(t *testing.T) {
	spec := Spec{Family: Dual}.withDefaults()
	for n, want := range map[int]string{1: "10.244.1.0/24,fd00:244:0:1::/64", 154: "10.244.154.0/24,fd00:244:0:9a::/64"} {
		got, err := spec.podCIDRs(n)
		if err != nil || joined(got) != want {
			t.Errorf("node%d: %s, %v, want %s", n, joined(got), err, want)
		}
	}
	for _, c := range []struct {
		network   string
		length, n int
		want      string
	}{
		{"10.0.0.0/8", 16, 3, "10.3.0.0/16"},
		{"10.0.0.0/8", 26, 5, "10.0.1.64/26"},
		{"10.0.255.0/8", 24, 258, "10.1.2.0/24"},
		{"fd00::/48", 56, 2, "fd00:0:0:200::/56"},
	} {
		if got := nthSubnet(netip.MustParsePrefix(c.network), c.length, c.n); got.String() != c.want {
			t.Errorf("subnet %d of length %d of %s is %s, want %s", c.n, c.length, c.network, got, c.want)
		}
	}
}

func TestReportText(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	r := Report{
		Name: "twill", Underlay: L2, Family: Dual, Backend: "vxlan", Store: Etcd,
		Nodes: []NodeReport{
			{Name: "node1", Underlay: []netip.Addr{addr("192.168.33.101"), addr("fd33::101")},
				Subnets: []netip.Prefix{prefix("10.244.1.0/24"), prefix("fd00:244:0:1::/64")}, MTU: 1430, Agent: "twilld", State: "ready",
				Pods: []PodReport{{"pod1", []netip.Addr{addr("10.244.1.2"), addr("fd00:244:0:1::2")}}}},
			{Name: "node2", Underlay: []netip.Addr{addr("192.168.33.102"), addr("fd33::102")}, Agent: "flanneld", State: "ended",
				Pods: []PodReport{{"pod1", []netip.Addr{addr("10.244.2.2"), addr("fd00:244:0:2::2")}}}},
		},
		Pings: []Ping{
			{From: "node1/pod1", To: "node2/pod1", Addr: addr("10.244.2.2"), RTT: 120 * time.Microsecond},
			{From: "node1/pod1", To: "node2/pod1", Addr: addr("fd00:244:0:2::2"), Error: "no reply"},
			{From: "node2/pod1", To: "node1/pod1", Addr: addr("10.244.1.2"), RTT: 1300 * time.Microsecond},
			{From: "node2/pod1", To: "node1/pod1", Addr: addr("fd00:244:0:1::2"), RTT: 90 * time.Microsecond},
		},
		Findings: []string{"node2: the agent is not ready, it is ended: see /run/twill/lab/twill/logs/node2.log",
			"node1/pod1 → node2/pod1 (fd00:244:0:2::2): no reply"},
	}
	for name, write := range map[string]func(*strings.Builder) error{
		"report.txt":  func(b *strings.Builder) error { return r.WriteText(b) },
		"report.json": func(b *strings.Builder) error { return r.WriteJSON(b) },
	} {
		var b strings.Builder
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; -update writes it. Got:\n%s", path, got)
	}
}

func TestMissingProgramsAreASentence(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("TWILL_BIN_DIR", "")
	if _, err := FindPrograms(); err == nil || !strings.Contains(err.Error(), "run `make build`") {
		t.Errorf("got %v", err)
	}
	dir := t.TempDir()
	t.Setenv("TWILL_BIN_DIR", dir)
	for _, name := range []string{"twilld", "twill"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := FindPrograms(); err != nil || p.Plugin != filepath.Join(dir, "twill") {
		t.Errorf("got %+v, %v", p, err)
	}
}

// TestProgramsOfOthers: a checkout that somebody else laid above the working directory is not run.
func TestProgramsOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: files of other users")
	}
	t.Setenv("TWILL_BIN_DIR", "")
	root := t.TempDir()
	bin, below := filepath.Join(root, "bin"), filepath.Join(root, "some", "where")
	for _, dir := range []string{bin, below} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{"go.mod": "module github.com/twill-net/twill\n", "bin/twilld": "", "bin/twill": ""} {
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(below)
	if p, err := FindPrograms(); err != nil || p.Agent != filepath.Join(bin, "twilld") {
		t.Errorf("one's own checkout: %+v, %v", p, err)
	}
	for name, spoil := range map[string]func() error{
		"belongs to the user 65534":     func() error { return os.Chown(filepath.Join(bin, "twilld"), 65534, 0) },
		"may be written by others than": func() error { return os.Chmod(bin, 0o777) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if p, err := FindPrograms(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v, %v, want %q", p, err, name)
		}
		if err := os.Chown(filepath.Join(bin, "twilld"), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TWILL_BIN_DIR", bin)
	if _, err := FindPrograms(); err != nil {
		t.Errorf("what the caller names: %v", err)
	}
}
