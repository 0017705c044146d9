package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/packet"
)

// build makes the program, and a link of the name that kubectl looks for.
func build(t *testing.T) (program, plugin string) {
	t.Helper()
	dir := t.TempDir()
	program, plugin = filepath.Join(dir, "twillctl"), filepath.Join(dir, "kubectl-twill")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Symlink("twillctl", plugin); err != nil {
		t.Fatal(err)
	}
	return program, plugin
}

// TestPlugin: under kubectl's name the usage is kubectl's, and the commands are about a cluster.
func TestPlugin(t *testing.T) {
	program, plugin := build(t)
	for _, c := range []struct{ program, want string }{
		{program, "  twillctl status [NODE] [flags]"}, {plugin, "  kubectl twill status [NODE] [flags]"},
		{plugin, "kubectl exec into the agents' pods (default true)"},
	} {
		out, err := exec.Command(c.program, "status", "--help").CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%v: want %q in\n%s", err, c.want, out)
		}
	}
	cmd := exec.Command(plugin, "status")
	cmd.Env = []string{"PATH=/nowhere"}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 2 || !strings.HasPrefix(string(out), "kubectl-twill: kubectl get: exec: \"kubectl\": executable file not found") {
		t.Errorf("without kubectl: %v, %s", err, out)
	}
}

// TestCompletion: the scripts of cobra are whole, and the program answers them.
func TestCompletion(t *testing.T) {
	program, _ := build(t)
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, err := exec.Command(program, "completion", shell).Output(); err != nil || !strings.Contains(string(out), "__complete") {
			t.Errorf("%s: %v, %d bytes", shell, err, len(out))
		}
	}
	out, err := exec.Command("bash", "-c", "source <("+program+" completion bash) && complete -p twillctl").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "__start_twillctl") {
		t.Errorf("bash: %v, %s", err, out)
	}
	if out, err := exec.Command(program, "__complete", "la").Output(); err != nil || !strings.HasPrefix(string(out), "lab\t") {
		t.Errorf("la…: %v, %s", err, out)
	}
}

// TestKubectlCompletes: kubectl finds out by the name kubectl_complete-twill how to go on: with commands, and with the
// nodes that have an agent.
func TestKubectlCompletes(t *testing.T) {
	k := newFakeKubectl(t, map[string]string{"get.json": list(ownSet, podJSON("twill-abc", "n1", "DaemonSet", "1"), podJSON("evil", "n2", "DaemonSet", "2"))})
	if err := os.Symlink("twillctl", filepath.Join(k.dir, "kubectl_complete-twill")); err != nil {
		t.Fatal(err)
	}
	genuine, err := filepath.Abs("../../bin/kube/kubectl")
	if err != nil {
		t.Fatal(err)
	}
	programs := map[string][]string{filepath.Join(k.dir, "kubectl_complete-twill"): nil}
	if _, err := os.Stat(genuine); err == nil {
		programs[genuine] = []string{"__complete", "twill"}
	}
	for program, args := range programs {
		for line, want := range map[string]string{"sta": "status\t", "status ": "n1\n", "plan ": "n1\n", "doctor n1 ": ":4", "status --lab=ctltestnone ": ":4"} {
			cmd := exec.CommandContext(t.Context(), program, append(args, strings.Split(line, " ")...)...)
			cmd.Env = []string{"PATH=" + k.dir + ":/usr/bin:/bin", "HOME=" + k.dir}
			if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), want) {
				t.Errorf("%s %q: %v, %q, want %q", filepath.Base(program), line, err, out, want)
			}
		}
	}
}

func TestMan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	if out, err := run(t, "man", dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, page := range []string{"twillctl.1", "twillctl-doctor.1", "twillctl-trace.1", "twillctl-lab-up.1"} {
		data, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !strings.Contains(string(data), ".TH") || !strings.Contains(string(data), ".SH SYNOPSIS") {
			t.Errorf("%s: %v", page, err)
		}
	}
}

// TestJoin: of two nodes' parts the first that stops the packet ends the way.
func TestJoin(t *testing.T) {
	step := func(node, stops string) doctor.Step {
		return doctor.Step{Node: node, Place: "route", Entry: "x", Verdict: stops}
	}
	near := doctor.Trace{Forward: []doctor.Step{step("a", "")}, Back: []doctor.Step{step("a", "")},
		Traffic: &doctor.Traffic{Forward: []doctor.Sighting{{Point: packet.Point{Host: "a", Dev: "eth0", Out: true}, Packets: 3}}}}
	far := doctor.Trace{Forward: []doctor.Step{step("b", "")}, Back: []doctor.Step{step("b", "no")}, Traffic: &doctor.Traffic{}}
	got := doctor.Join(near, far)
	if got.Stopped == nil || got.Stopped.Node != "b" || len(got.Forward) != 2 || len(got.Back) != 1 {
		t.Errorf("got %+v", got)
	}
	near.Probes, far.Probes = doctor.Probes{Sent: 3, Lost: 1, Unread: []string{"x"}}, doctor.Probes{Sent: 2, Lost: 2, Unread: []string{"x"}}
	for _, side := range []struct {
		of *doctor.Trace
		id string
	}{{&near, "packet-lost-near"}, {&far, "packet-lost"}} { // as nodes print them
		if err := json.Unmarshal([]byte(`[{"id": "`+side.id+`"}]`), &side.of.Lost); err != nil {
			t.Fatal(err)
		}
	}
	if got := doctor.Join(near, far); got.Lost[0].ID != "packet-lost" || got.Probes.Sent != 5 || got.Probes.Lost != 3 || len(got.Probes.Unread) != 1 {
		t.Errorf("probes of both nodes: got %+v, %+v", got.Lost, got.Probes)
	}
	if !got.Failed() || got.Traffic.Gone != "none came to the other node; seen last on a, leaving through eth0" {
		t.Errorf("got %+v", got.Traffic)
	}
	far.Traffic.Forward = []doctor.Sighting{{Point: packet.Point{Host: "b", Dev: "flannel.1"}, Packets: 3}}
	if got := doctor.Join(near, far); !got.Failed() || got.Traffic.Gone != "no reply was seen; seen last on b, coming in through flannel.1" {
		t.Errorf("got %+v", got.Traffic)
	}
}
