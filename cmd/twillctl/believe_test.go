package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/agent"
)

// agentSettings is the environment variable by which TestAgentProcess becomes an agent with these settings.
const agentSettings = "TWILL_TEST_SETTINGS"

// agentLike starts a process that is named twilld, and answers as twilld does, as a user. It lives as long as the test.
func agentLike(t *testing.T, user string, s agent.Settings) {
	t.Helper()
	program := filepath.Join(open(t, t.TempDir()), "twilld")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	settings, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("setpriv", "--reuid="+user, "--clear-groups", program, "-test.run=^TestAgentProcess$")
	cmd.Env = append(os.Environ(), agentSettings+"="+string(settings))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if _, err := io.ReadFull(out, make([]byte, len("runs\n"))); err != nil {
		t.Fatal(err)
	}
}

// TestAgentProcess is the process of agentLike. Otherwise it proves that nobody answers without one.
func TestAgentProcess(t *testing.T) {
	text := os.Getenv(agentSettings)
	if text == "" {
		if s, _, err := agent.AskSettings(); err == nil {
			t.Errorf("an agent answers: %+v", s)
		}
		return
	}
	var s agent.Settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", agent.SettingsSocket)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	fmt.Println("runs")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	l.Close()
}

// open lets everybody into a test's directory.
func open(t *testing.T, dir string) string {
	t.Helper()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const ownCheckpoint = `{"Version":1,"Node":"n1","Network":{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}},
"Local":{"Node":"n1","Backend":"vxlan","Stacks":[{"Subnet":"10.244.1.0/24","Underlay":"192.0.2.1"}]}}`

// trap is a kubeconfig by which a command is run, which leaves a trace, and a checkpoint that has the API asked.
func trap(t *testing.T) (s agent.Settings, kubeconfig, trace string) {
	t.Helper()
	dir := t.TempDir()
	kubeconfig, trace = filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "trace")
	checkpoint := filepath.Join(dir, "checkpoint.json")
	for path, text := range map[string]string{checkpoint: ownCheckpoint, kubeconfig: fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"users":[{"name":"u","user":{"exec":{"apiVersion":"client.authentication.k8s.io/v1","interactiveMode":"Never","command":"/bin/sh","args":["-c","id >%s"]}}}]}`, trace)} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return agent.Settings{Kube: agent.KubeSettings{Use: true, Kubeconfig: kubeconfig}, Checkpoint: checkpoint, Bridge: "fakebridge"}, kubeconfig, trace
}

// looks are the commands that look for the agent on this machine.
func looks(t *testing.T) [][]string {
	return [][]string{{"doctor"}, {"status"}, {"plan"}, {"report", "--file=" + filepath.Join(t.TempDir(), "report")}, {"trace", "10.244.1.2", "10.244.1.3"}}
}

func ran(t *testing.T, trace string) bool {
	t.Helper()
	_, err := os.Stat(trace)
	return err == nil
}

// TestStrangersProcess: a process of a user without rights that is named twilld and advertises a kubeconfig with a
// command is not believed, and the command does not run.
func TestStrangersProcess(t *testing.T) {
	s, _, trace := trap(t)
	agentLike(t, "65534", s)
	for _, args := range looks(t) {
		out, err := run(t, args...)
		if ran(t, trace) || strings.Contains(out, "fakebridge") || strings.Contains(out, "10.244.1.0/24") {
			t.Errorf("%v believes the stranger: ran %v, %v\n%s", args, ran(t, trace), err, out)
		}
	}
	if out, _ := run(t, "doctor"); !strings.Contains(out, "no-lease") || !strings.Contains(out, "belongs to user 65534") {
		t.Errorf("doctor:\n%s", out)
	}
}

// TestAgentsKubeconfig: root's process is believed, and a command in the kubeconfig that it names is not run all the same;
// in one that the caller names it is.
func TestAgentsKubeconfig(t *testing.T) {
	s, kubeconfig, trace := trap(t)
	agentLike(t, "0", s)
	for _, args := range looks(t) {
		if out, err := run(t, args...); ran(t, trace) {
			t.Errorf("%v runs the command: %v\n%s", args, err, out)
		}
	}
	out, _ := run(t, "doctor")
	if !strings.Contains(out, "10.244.1.0/24") || !strings.Contains(out, "runs a command (exec or auth-provider)") {
		t.Errorf("root's process is not believed:\n%s", out)
	}
	if out, _ := run(t, "doctor", "--kubeconfig-file="+kubeconfig); !ran(t, trace) {
		t.Errorf("the caller's own kubeconfig:\n%s", out)
	}
	if err := os.Chown(kubeconfig, 65534, 0); err != nil {
		t.Fatal(err)
	}
	if out, _ := run(t, "doctor"); !strings.Contains(out, "belongs to the user 65534") {
		t.Errorf("a stranger's kubeconfig:\n%s", out)
	}
}
