package eval

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// TestInside runs the program itself on a node, as people do: it finds the agent and its flags by itself, and asks the
// API server with the agent's rights, or with wrong ones.
func TestInside(t *testing.T) {
	program := filepath.Join(t.TempDir(), "twillctl")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "../../cmd/twillctl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l := labtest.Up(t, lab.Spec{Name: "doctorinside", Store: lab.Kube, Nodes: 2, Pods: 1})
	n := l.Nodes()[1]
	ask := func(args ...string) doctor.Report {
		t.Helper()
		out, _ := n.Exec(t.Context(), append([]string{program, "doctor", "-o", "json"}, args...)...) // exits 1 with findings
		var r doctor.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return r
	}
	var r doctor.Report
	for deadline := time.Now().Add(recovery); ; {
		if r = ask(); len(r.Findings) == 0 && r.Peers == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a healthy node: %+v", r)
		}
	}
	if r.Node != n.Name || r.Schema != doctor.Schema {
		t.Errorf("got %+v", r)
	}
	wrong := filepath.Join(t.TempDir(), "kubeconfig")
	check(t, os.WriteFile(wrong, []byte(wrongToken(t, n)), 0o600))
	r = ask("--kubeconfig-file", wrong)
	if len(r.Findings) != 1 || r.Findings[0].ID != "api-trouble" || !strings.Contains(strings.ToLower(r.Findings[0].Actual), "unauthorized") {
		t.Errorf("with a wrong token: %+v", r.Findings)
	}
}

// wrongToken is the agent's kubeconfig with another token.
func wrongToken(t *testing.T, n *lab.Node) string {
	t.Helper()
	for _, flag := range n.AgentFlags() {
		if path, ok := strings.CutPrefix(flag, "--kubeconfig-file="); ok {
			data, err := os.ReadFile(path)
			check(t, err)
			return regexp.MustCompile(`"?token"?: .*`).ReplaceAllString(string(data), "token: wrong")
		}
	}
	t.Fatal("the agent has no kubeconfig")
	return ""
}
