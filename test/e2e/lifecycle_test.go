package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

func small(name string) lab.Spec {
	return labtest.Spec(lab.Spec{Name: name, Nodes: 2, Pods: 1, Store: lab.File})
}

func TestUpTwiceUsesTheSameLab(t *testing.T) {
	t.Parallel()
	l := labtest.Start(t, small("e2etwice"))
	n := l.Nodes()[0]
	if err := n.KillAgent(); err != nil {
		t.Fatal(err)
	}
	again, err := lab.Up(t.Context(), small("e2etwice"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !again.Nodes()[0].AgentRunning() {
		t.Error("the agent that died was not started again")
	}
	if a, b := l.Nodes()[1].Agent(), again.Nodes()[1].Agent(); a != b {
		t.Errorf("the other agent is %+v, want still %+v", b, a)
	}
	cluster{t, again}.matrix()
	other := small("e2etwice")
	other.Nodes = 3
	if _, err := lab.Up(t.Context(), other, nil); err == nil || !strings.Contains(err.Error(), "other settings") {
		t.Errorf("up with three nodes: %v, want a sentence about other settings", err)
	}
}

func TestOpenFindsALabAndItsHosts(t *testing.T) {
	labtest.Start(t, small("e2eopen"))
	t.Setenv("TWILL_BIN_DIR", filepath.Dir(small("").Programs.Agent))
	l, err := lab.Open(labtest.Dir, "e2eopen")
	if err != nil {
		t.Fatal(err)
	}
	cluster{t, l}.matrix()
	for name, want := range map[string]string{"node1": "e2eopen-node1", "node2/pod1": "e2eopen-node2-pod1",
		"node2-pod1": "e2eopen-node2-pod1", "outside": "e2eopen-outside", "underlay": "e2eopen-underlay"} {
		if h, err := l.Find(name); err != nil || h.Name != want || !h.Exists() {
			t.Errorf("find %s: %s, %v, want %s", name, h.Name, err, want)
		}
	}
	if _, err := l.Find("node3"); err == nil || !strings.Contains(err.Error(), "node1 node2") {
		t.Errorf("find node3: %v, want a sentence with the nodes", err)
	}
	if names, err := lab.List(labtest.Dir); err != nil || !slices.Contains(names, "e2eopen") {
		t.Errorf("labs: %v, %v", names, err)
	}
	if _, err := lab.Open(labtest.Dir, "e2enone"); !errors.Is(err, lab.ErrNoLab) {
		t.Errorf("open a lab that is not there: %v", err)
	}
}

func TestUpRemovesWhatACrashLeft(t *testing.T) {
	t.Parallel()
	l := labtest.Start(t, small("e2ecrash"))
	old := l.Nodes()[0].Agent()
	state := filepath.Join(l.Dir(), "state.json")
	data, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	// The crash came between an agent's start and its entry.
	crashed := strings.Replace(string(data), `"Complete": true`, `"Complete": false`, 1)
	unwritten := strings.Replace(crashed, fmt.Sprintf(`"PID": %d,`, old.PID), `"PID": 0,`, 1)
	if crashed == string(data) || unwritten == crashed {
		t.Fatalf("%s is not complete, or has no process %d", state, old.PID)
	}
	if err := os.WriteFile(state, []byte(unwritten), 0o644); err != nil {
		t.Fatal(err)
	}
	// A namespace that was made just before the crash, which the state does not tell of.
	if err := (host.Host{Name: "e2ecrash-node7"}).Create(); err != nil {
		t.Fatal(err)
	}
	var said []string
	again, err := lab.Up(t.Context(), small("e2ecrash"), func(line string) { said = append(said, line) })
	if err != nil {
		t.Fatal(err)
	}
	cluster{t, again}.matrix()
	if old.Running() || (host.Host{Name: "e2ecrash-node7"}).Exists() {
		t.Errorf("the crashed run's agent runs: %v", old.Running())
	}
	if !slices.Contains(said, "removed what an earlier run had left") {
		t.Errorf("said %q", said)
	}
}

// TestLabUnderAnotherMount: what mounts over /run/netns hides a lab's namespaces. The test runs again in a mount
// namespace where /run is its own.
func TestLabUnderAnotherMount(t *testing.T) {
	spec := small("e2ehidden")
	if os.Getenv("TWILL_FRESH_RUN") == "" {
		cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-ec", `mount -t tmpfs tmpfs /run; exec "$0" "$@"`,
			os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "TWILL_FRESH_RUN=1", "TWILL_BIN_DIR="+filepath.Dir(spec.Programs.Agent))
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	l := labtest.Start(t, spec)
	sh := func(command string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "sh", "-ec", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	sh("ip netns add other")
	cluster{t, l}.matrix()
	agent := l.Nodes()[0].Agent()
	sh("mount --bind /run/netns /run/netns")
	if _, err := lab.Open(labtest.Dir, spec.Name); err == nil || !strings.Contains(err.Error(), "hidden by another mount: twillctl lab up makes the lab anew") {
		t.Errorf("open: %v", err)
	}
	again, err := lab.Up(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if agent.Running() {
		t.Error("an agent of the hidden lab runs")
	}
	cluster{t, again}.matrix()
	sh("mount --bind /run/netns /run/netns")
	if removed, err := lab.Down(labtest.Dir, spec.Name); err != nil || !removed.Found {
		t.Errorf("down: %v, %v", removed, err)
	}
	if left, err := filepath.Glob(host.Dir + "/e2e*"); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestUpThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	spec := small("e2efails")
	spec.Agents = map[string]string{"node2": "/bin/false"}
	_, err := lab.Up(t.Context(), spec, nil)
	if err == nil || !strings.Contains(err.Error(), "node2") || !strings.Contains(err.Error(), "it has ended") {
		t.Errorf("up with an agent that ends: %v", err)
	}
	left, err := filepath.Glob(host.Dir + "/e2efails-*")
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	if removed, err := lab.Down(labtest.Dir, "e2efails"); removed.Found || err != nil {
		t.Errorf("down found something: %v, %v", removed, err)
	}
	if left, err := filepath.Glob(labtest.Dir + "/e2efails*"); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// The other agent is Twill's, behind a script that gives it what a foreign agent does not get.
func TestAgentWithFlannelsFlagsOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := "#!/bin/sh\nexec " + small("").Programs.Agent + ` "$@" --checkpoint-file=` + dir + "/checkpoint.json\n"
	path := filepath.Join(dir, "flanneld")
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	spec := small("e2eforeign")
	spec.Agents = map[string]string{"node2": path}
	l := labtest.Start(t, spec)
	for _, f := range l.Nodes()[1].AgentFlags() {
		if strings.HasPrefix(f, "--checkpoint-file") || strings.HasPrefix(f, "--node-name") {
			t.Errorf("a foreign agent gets %s", f)
		}
	}
	if got := l.Status(t.Context()).Nodes[1]; got.Agent != "flanneld" || got.State != "ready" {
		t.Errorf("status of node2: %+v", got)
	}
	cluster{t, l}.matrix()
	if err := l.Nodes()[1].RestartAgent(t.Context()); err != nil {
		t.Error(err)
	}
}

// Host-gw has no way through a router: the report has to say so.
func TestReportTellsWhatDoesNotWork(t *testing.T) {
	t.Parallel()
	spec := small("e2ereport")
	spec.Backend, spec.Underlay, spec.Nodes = "host-gw", lab.L3, 3
	l := labtest.Start(t, spec)
	pods := l.Pods()
	for _, pair := range [][2]*lab.Pod{{pods[0], pods[2]}, {pods[2], pods[0]}} {
		testwait.Nil(t, "agents learn of their peers a moment after they are ready", func() error {
			_, err := pair[0].Ping(t.Context(), host.Ping{To: pair[1].Addrs[0]})
			return err
		})
	}
	report, err := l.Report(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	answered := map[string]bool{}
	for _, p := range report.Pings {
		answered[p.From+" "+p.To] = p.OK()
	}
	want := map[string]bool{
		"node1/pod1 node2/pod1": false, "node2/pod1 node1/pod1": false, "node2/pod1 node3/pod1": false,
		"node3/pod1 node2/pod1": false, "node1/pod1 node3/pod1": true, "node3/pod1 node1/pod1": true,
	}
	for pair, ok := range want {
		if got, found := answered[pair]; got != ok || !found {
			t.Errorf("ping %s: %v, want %v", pair, got, ok)
		}
	}
	if len(report.Pings) != 6 || len(report.Findings) != 4 {
		t.Errorf("%d pings and the findings %q", len(report.Pings), report.Findings)
	}
	if err := l.Nodes()[0].KillAgent(); err != nil {
		t.Fatal(err)
	}
	status := l.Status(t.Context())
	if status.Nodes[0].State != "ended" || len(status.Findings) != 1 || !strings.Contains(status.Findings[0], "node1: the agent is not ready") {
		t.Errorf("status after a kill: %+v", status)
	}
}

func TestPodsComeAndGo(t *testing.T) {
	t.Parallel()
	l := labtest.Start(t, small("e2epods"))
	n := l.Nodes()[0]
	pod, err := n.AddPod(t.Context(), "extra")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.CheckPod(t.Context(), pod); err != nil {
		t.Errorf("check: %v", err)
	}
	cluster{t, l}.matrix()
	if err := n.DelPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if pod.Exists() || len(n.Pods()) != 1 {
		t.Errorf("after the pod went: exists %v, pods %v", pod.Exists(), n.Pods())
	}
	cluster{t, l}.matrix()
	if _, err := n.AddPod(t.Context(), "No-Name"); err == nil || !strings.Contains(err.Error(), "lower-case") {
		t.Errorf("bad name: %v", err)
	}
}
