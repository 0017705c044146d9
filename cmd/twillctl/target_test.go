package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/target"
)

// TestLabTarget: each command asks all nodes of a lab, or the one that is named, and one whose agent is away keeps no
// other from being shown.
func TestLabTarget(t *testing.T) {
	const name = "ctltarget"
	defer func() {
		if _, err := run(t, "lab", "down", "--name", name); err != nil {
			t.Error(err)
		}
	}()
	if out, err := run(t, "lab", "up", "--name", name, "--nodes", "2", "--pods", "1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	all := func(word string) []string { return []string{word, "--lab", name} }
	shows := func(args []string, code int, wants ...string) {
		t.Helper()
		out, err := run(t, args...)
		if got := exitCode(err); got != code {
			t.Errorf("%v: exit code %d, want %d: %v\n%s", args, got, code, err, out)
		}
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%v: want %q in\n%s", args, want, out)
			}
		}
	}
	shows(all("status"), 0, "node1", "node2")
	shows(append(all("status"), "node2"), 0, "node2")
	shows(all("doctor"), 0, "node node1: vxlan", "node node2: vxlan")
	shows(append(all("doctor"), "node2"), 0, "node node2: vxlan")
	shows(all("plan"), 0, target.NothingToChange)
	shows(append(all("plan"), "node2"), 0, target.NothingToChange)
	shows(all("history"), 0, "node1", "node2")
	shows(all("test"), 0, "node1", "node2")
	shows(append(all("trace"), "node1/pod1", "node2/pod1"), 0, "node1")
	shows(append(all("fastpath"), "status"), 0, "node1: fast path: off", "node2: fast path: off")
	shows(append(all("fastpath"), "resume"), 2, "node1: the fast path is not available", "node2: the fast path is not available")
	path := filepath.Join(t.TempDir(), "report.tar.gz")
	shows(append(all("report"), "--file", path), 0, path)
	if _, err := target.ReadReport(path); err != nil {
		t.Error(err)
	}
	page := filepath.Join(t.TempDir(), "page.html")
	shows(append(all("report"), "--html", "--file", page), 0, "2 nodes")
	shows(append(all("test"), "--pod", "192.0.2.1"), 2)
	for args, want := range map[string]string{
		"status node9":                "lab ctltarget has no node \"node9\": want one of node1 to node2",
		"fastpath resume":             "2 of 2 nodes failed",
		"test --dns 192.0.2.1":        "--lab: a lab is tested between all its pods: want no --pod, --service or --dns",
		"trace node1/pod1 node3/pod1": "lab ctltarget has no pod \"node3/pod1\": want NODE/POD, an address of a pod, or a node",
	} {
		if out, err := run(t, append(strings.Fields(args), "--lab", name)...); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s\n%s", args, err, want, out)
		}
	}

	l, err := lab.Open("", name)
	if err != nil {
		t.Fatal(err)
	}
	asked := func() string {
		out, err := l.Nodes()[0].Exec(t.Context(), "sh", "-ec", "nstat -asz IcmpOutEchos | grep Icmp")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := asked()
	shows(append(all("doctor"), "--no-probe"), 0, "node node1: vxlan", "? nothing is wrong that can be seen without a probe")
	if after := asked(); after != before {
		t.Errorf("with --no-probe the node sends: %s before, %s after", before, after)
	}
	shows(append(all("doctor"), "node1"), 0, "✓ nothing is wrong here, and one peer answers")
	if asked() == before {
		t.Errorf("the node does not ask its peer: %s", before)
	}
	if err := l.Nodes()[1].KillAgent(); err != nil {
		t.Fatal(err)
	}
	shows(all("history"), 1, "node1  start", "✗ node2: ")
	shows(all("status"), 1, "agent-down")
	out, _ := run(t, "doctor", "--lab", name, "-o", "json")
	var got struct {
		Nodes []struct{ Node string }
		First struct{ ID, Place string }
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Nodes) != 2 || got.First.ID != "agent-down" || got.First.Place != "node2" {
		t.Errorf("doctor: %v, %+v", err, got)
	}
}

// TestClusterTarget: each command runs itself on the nodes of a cluster, and joins what they print.
func TestClusterTarget(t *testing.T) {
	app := func(name, node, ip string) string {
		return fmt.Sprintf(`{"kind":"Pod","metadata":{"name":%q,"namespace":"shop"},"spec":{"nodeName":%q},"status":{"phase":"Running","podIPs":[{"ip":%q}]}}`, name, node, ip)
	}
	k := newFakeKubectl(t, map[string]string{"get.json": list(ownSet, podJSON("twill-a", "n1", "DaemonSet", "1"), podJSON("twill-b", "n2", "DaemonSet", "1"),
		app("web", "n1", "10.244.1.2"), app("db", "n2", "10.244.2.2"))})
	script := strings.Replace(fakeScript, `exec) echo "$3" >>asked;`, `exec) echo "$3: $*" | sed 's/:.* twillctl / /' >>asked; shift 6;`, 1)
	if err := os.WriteFile(filepath.Join(k.dir, "kubectl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args, exec string
		code       int
		out, asked string
	}{
		{"history", `{"nodes":[{"node":"n1","events":[{"at":"2999-01-01T00:00:00Z","kind":"start","text":"up"}]}]}`, 0, "n1  start   up\n", "history --output=json"},
		{"doctor n1", `{"node":"n1","answered":2}`, 0, "2 peers answer", "doctor --probe=false --output=json"},
		{"doctor n1 --no-probe", `{"node":"n1"}`, 0, "node n1", "doctor --probe=false --no-probe --output=json"},
		{"doctor n1 --probe", `{"node":"n1","probed":true}`, 0, "packets came back", "doctor --probe=true --output=json"},
		{"doctor n1 --probe --outside 192.0.2.1", `{"node":"n1","notes":["the gateway is quiet"]}`, 0, "? the gateway is quiet", "doctor --probe=true --outside=192.0.2.1 --output=json"},
		{"doctor n1 --outside 192.0.2.1", "", 2, "--outside 192.0.2.1: want --probe, too, which sends packets there", ""},
		{"doctor n1 --probe --outside nowhere", "", 2, `--outside "nowhere": want an IP address`, ""},
		{"fastpath status", `{"nodes":[{"node":"n1","off":"no BPF"}]}`, 0, "n1: fast path: off: no BPF\nn1: fast path: off: no BPF\n", "fastpath status --output=json"},
		{"fastpath status n2", `{"nodes":[{"off":"no BPF"}]}`, 0, "fast path: off: no BPF\n", "fastpath status --output=json"},
		{"fastpath pause 10m", "they pause\n", 0, "n1: they pause\nn2: they pause\n", "fastpath pause 10m0s"},
		{"fastpath resume n2", "they go on\n", 0, "n2: they go on\n", "fastpath resume"},
		{"test --outside 192.0.2.1", `{"cells":[],"probes":{"sent":2}}`, 0, "", "test --pod=10.244.1.2 --pod=10.244.2.2 --outside=192.0.2.1 --output=json"},
		{"trace --probe=false shop/web shop/db", `{"there":[{"node":"n1","place":"route","entry":"10.244.2.0/24"}]}`, 0, "10.244.2.0/24",
			"trace --probe=false --live=false --for=3s 10.244.1.2 10.244.2.2 --output=json"},
		{"trace --probe=false shop/web 192.0.2.1", `{"there":[{"node":"n1","place":"masquerading","entry":"an address of eth0"}]}`, 0, "an address of eth0",
			"trace --probe=false --live=false --for=3s 10.244.1.2 192.0.2.1 --output=json"},
		{"plan", "", 2, "which node? want the name of one of the cluster's", ""},
		{"report n3", "", 2, `no agent of Twill runs on node "n3"`, ""},
		{"history", "old", 1, "✗ n1: node n1 printed no JSON (is its twillctl as new as this one?)", "history --output=json"},
	} {
		for name, text := range map[string]string{"exec": test.exec, "asked": ""} {
			if err := os.WriteFile(filepath.Join(k.dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out, code := k.run(strings.Fields(test.args)...)
		if code != test.code || !strings.Contains(out, test.out) {
			t.Errorf("%s: exit code %d, want %d and %q in\n%s", test.args, code, test.code, test.out, out)
		}
		if asked := k.asked(); test.asked != "" && !strings.Contains(asked, " "+test.asked+"\n") {
			t.Errorf("%s: want a node asked to %s, in\n%s", test.args, test.asked, asked)
		}
	}
}
