package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twill-net/twill/target"
)

// hostile are texts that steer a terminal: they clear it, set its title, write over the line, and turn it around.
const hostile = "\x1b[2J\x1b]0;pwned\a\rsafe\u009b31m\u202e"

// fakeKubectl is the plugin beside a kubectl that answers from files: get.json, names, exec, log and previous.log.
type fakeKubectl struct {
	*testing.T
	dir, plugin string
}

const fakeScript = `#!/bin/sh
cd "$(dirname "$0")"
case "$1" in
get) echo "$*" >>asked
	case "$*" in
	*--output=name*) cat names;;
	*) cat get.json;;
	esac;;
exec) echo "$3" >>asked; cat exec;;
logs) lines=$(echo "$*" | sed -n 's/.*--tail=\([0-9]*\).*/\1/p')
	case "$*" in
	*--previous*) file=previous.log;;
	*) file=log;;
	esac
	limit=$(echo "$*" | sed -n 's/.*--limit-bytes=\([0-9]*\).*/\1/p')
	tail -n "${lines:-1000000000}" "$file" | head -c "${limit:-1000000000}";;
esac
`

func newFakeKubectl(t *testing.T, files map[string]string) fakeKubectl {
	t.Helper()
	_, plugin := build(t)
	k := fakeKubectl{t, filepath.Dir(plugin), plugin}
	files["kubectl"] = fakeScript
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(k.dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

func (k fakeKubectl) run(args ...string) (out string, code int) {
	k.Helper()
	cmd := exec.CommandContext(k.Context(), k.plugin, args...)
	cmd.Env, cmd.Dir = []string{"PATH=" + k.dir + ":/usr/bin:/bin"}, k.dir
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		k.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// asked is what kubectl was asked to get, and whose pods were asked.
func (k fakeKubectl) asked() string {
	k.Helper()
	text, err := os.ReadFile(filepath.Join(k.dir, "asked"))
	if err != nil {
		k.Fatal(err)
	}
	return string(text)
}

const ownSet = `{"kind":"DaemonSet","metadata":{"name":"twill","namespace":"kube-twill","uid":"1"}}`

// podJSON is a pod on a node with a controller.
func podJSON(name, node, kind, uid string) string {
	return fmt.Sprintf(`{"kind":"Pod","metadata":{"name":%q,"namespace":"kube-twill","ownerReferences":[{"kind":%q,"uid":%q,"controller":true}]},
"spec":{"nodeName":%q,"hostNetwork":true},"status":{"phase":"Running"}}`, name, kind, uid, node)
}

func list(items ...string) string {
	return `{"kind":"List","items":[` + strings.Join(items, ",") + `]}`
}

// TestUnenforced: the cluster's NetworkPolicies are counted if nothing enforces any on some node.
func TestUnenforced(t *testing.T) {
	const answer = `{"schema":1,"node":"n1","findings":[],"unread":[]%s}`
	for name, test := range map[string]struct {
		exec, names string
		want        bool
	}{
		"nothing enforces them": {"", "networkpolicy.networking.k8s.io/a\nnetworkpolicy.networking.k8s.io/b\n", true},
		"Twill does":            {`,"policies":{"enforced":true}`, "networkpolicy.networking.k8s.io/a\n", false},
		"there are none":        {"", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			k := newFakeKubectl(t, map[string]string{"exec": fmt.Sprintf(answer, test.exec), "names": test.names,
				"get.json": list(ownSet, podJSON("twill-abc", "n1", "DaemonSet", "1"))})
			out, code := k.run("doctor")
			if found := strings.Contains(out, "policies-not-enforced") && strings.Contains(out, "2 exist, and nothing on this node enforces them"); found != test.want || (code == 1) != test.want {
				t.Errorf("exits %d:\n%s", code, out)
			}
		})
	}
}

// TestOnlyTheDaemonSetsPods: a pod that has the agents' label and not their owner is not asked, and nobody looks for it in
// other namespaces.
func TestOnlyTheDaemonSetsPods(t *testing.T) {
	k := newFakeKubectl(t, map[string]string{"exec": target.NothingToChange, "get.json": list(ownSet, podJSON("evil", "n1", "DaemonSet", "2"),
		podJSON("alone", "n1", "ReplicaSet", "1"), podJSON("twill-abc", "n1", "DaemonSet", "1"))})
	if out, code := k.run("plan", "n1"); code != 0 || out != target.NothingToChange {
		t.Errorf("plan: %d, %s", code, out)
	}
	if got := k.asked(); !strings.Contains(got, "--namespace=kube-twill") || strings.Contains(got, "all-namespaces") || !strings.HasSuffix(got, "\ntwill-abc\n") {
		t.Errorf("asked %s", got)
	}
	if _, code := k.run("plan", "n1", "-n", "kube-system"); code != 0 || !strings.Contains(k.asked(), "--namespace=kube-system") {
		t.Errorf("exit code %d, asked %s", code, k.asked())
	}
	for want, items := range map[string][]string{
		"the namespace kube-twill has no DaemonSet with the label app.kubernetes.io/name=twill: say with --namespace where Twill is installed": {
			podJSON("evil", "n1", "DaemonSet", "2")},
		"the namespace kube-twill has several DaemonSets with the label app.kubernetes.io/name=twill (twill, other)": {
			ownSet, strings.ReplaceAll(ownSet, `"twill"`, `"other"`), podJSON("twill-abc", "n1", "DaemonSet", "1")},
		"the DaemonSet twill of the namespace kube-twill has no pods on any node": {ownSet, podJSON("evil", "n1", "DaemonSet", "2")},
	} {
		if err := os.WriteFile(filepath.Join(k.dir, "get.json"), []byte(list(items...)), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, code := k.run("status"); code != 2 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, want %q in %s", code, want, out)
		}
	}
}

// TestKubectlFails: kubectl's error is told, and is no finding.
func TestKubectlFails(t *testing.T) {
	k := newFakeKubectl(t, map[string]string{})
	const script = "#!/bin/sh\necho 'error: context \"here\" does not exist' >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(k.dir, "kubectl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"doctor"}, {"doctor", "n1"}, {"status"}, {"plan", "n1"}, {"report", "n1"}, {"trace", "n1", "n2"}} {
		if out, code := k.run(args...); code != 2 || !strings.Contains(out, `error: context "here" does not exist`) {
			t.Errorf("%q: exit code %d, %q", args, code, out)
		}
	}
}

// harmless fails the test if a text could steer a terminal.
func harmless(t *testing.T, what, text string) {
	t.Helper()
	if strings.ContainsAny(text, "\x1b\a\r\u009b\u202e") {
		t.Errorf("%s steers the terminal: %q", what, text)
	}
	if !strings.Contains(text, "pwned") {
		t.Errorf("%s lacks what the test is about: %q", what, text)
	}
}

// TestHostileNode: what a node says reaches no terminal and no archive with control characters in it.
func TestHostileNode(t *testing.T) {
	report, err := json.Marshal(map[string]any{"node": "n1" + hostile, "findings": []any{}})
	if err != nil {
		t.Fatal(err)
	}
	status := `{"nodes":[` + string(report) + `]}`
	k := newFakeKubectl(t, map[string]string{"get.json": list(ownSet, podJSON("twill-abc", "n1", "DaemonSet", "1"))})
	for command, answer := range map[string]string{"plan": hostile, "doctor": string(report), "status": status} {
		if err := os.WriteFile(filepath.Join(k.dir, "exec"), []byte(answer), 0o644); err != nil {
			t.Fatal(err)
		}
		out, _ := k.run(command, "n1")
		harmless(t, command, out)
		if command == "plan" {
			continue
		}
		out, _ = k.run(command, "n1", "--output=json")
		harmless(t, command+" as JSON", out)
		if !json.Valid([]byte(out)) {
			t.Errorf("%s: no JSON: %s", command, out)
		}
	}
	if err := os.WriteFile(filepath.Join(k.dir, "get.json"), []byte(hostile), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, code := k.run("plan", "x"+hostile); code != 2 || strings.ContainsAny(out, "\x1b\u202e") {
		t.Errorf("%d, %q", code, out)
	}
}

func packed(t *testing.T, files ...target.Member) string {
	t.Helper()
	var b bytes.Buffer
	if err := target.Bundle(files).WriteTar(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestClusterReport: the report of a node has the ends of its agent's two last logs, without control characters.
func TestClusterReport(t *testing.T) {
	filler := strings.Repeat(strings.Repeat("x", 200)+"\n", 20000)
	k := newFakeKubectl(t, map[string]string{"exec": packed(t, target.Member{Name: "plan.txt", Data: []byte(hostile)}), "log": "first\n" + filler + "last " + hostile + "\n",
		"previous.log": "first\nlast " + hostile + "\n", "get.json": list(ownSet, podJSON("twill-abc", "n1", "DaemonSet", "1"))})
	if out, code := k.run("report", "n1", "--file=out.tar.gz"); code != 0 {
		t.Fatalf("%d: %s", code, out)
	}
	data, err := os.ReadFile(filepath.Join(k.dir, "out.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := target.ReadBundle(bytes.NewReader(data))
	if err != nil || len(files) != 3 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		harmless(t, f.Name, string(f.Data))
		if strings.Contains(f.Name, "log") && !strings.Contains(string(f.Data), "\nlast ") || f.Name == "twilld.log" && len(f.Data) > 1<<20+1000 {
			t.Errorf("%s, %d bytes, lacks its last line", f.Name, len(f.Data))
		}
	}
}

// TestReportFile: the report is its owner's alone, and goes through no link and into no file of somebody else.
func TestReportFile(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := t.TempDir()
	path, taken, link := filepath.Join(dir, "report.tar.gz"), filepath.Join(dir, "taken"), filepath.Join(dir, "link")
	if err := writeNew(path, target.Bundle{{Name: "a.txt"}}.WriteTar); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(taken, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{taken, filepath.Join(dir, "none")} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
		if err := writeNew(link, target.Bundle(nil).WriteTar); err == nil || !strings.Contains(err.Error(), link+" exists already") {
			t.Errorf("through a link to %s: %v", to, err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeNew(taken, target.Bundle(nil).WriteTar); err == nil || !strings.Contains(err.Error(), "name another file with --file") {
		t.Errorf("over a file: %v", err)
	}
	if data, err := os.ReadFile(taken); err != nil || string(data) != "precious" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("made through a link: %v", err)
	}
	if err := writeNew(filepath.Join(dir, "half"), target.Bundle{{Name: strings.Repeat("\x00", 200)}}.WriteTar); err == nil {
		t.Error("a name that tar cannot hold is written")
	} else if _, err := os.Stat(filepath.Join(dir, "half")); !os.IsNotExist(err) {
		t.Errorf("half a report is left: %v, %v", err, fs.ErrExist)
	}
}

// TestHostileLease: what stands in a peer's lease reaches no terminal with control characters in it.
func TestHostileLease(t *testing.T) {
	program, _ := build(t)
	agent := filepath.Join(filepath.Dir(program), "twilld")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", agent, "../twilld").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	peer, err := json.Marshal("n2" + hostile)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	conf, leases, checkpoint := filepath.Join(dir, "net-conf.json"), filepath.Join(dir, "leases.json"), filepath.Join(dir, "checkpoint.json")
	for path, text := range map[string]string{
		conf:       `{"Network":"10.244.0.0/16","Backend":{"Type":"alloc"}}`,
		leases:     `{"leases":[{"node":"n1","backend":"alloc","stacks":[{"subnet":"10.244.1.0/24","underlay":"127.0.0.1"}]}]}`,
		checkpoint: strings.Replace(ownCheckpoint, `"Local"`, `"Skips":[{"Node":`+string(peer)+`,"Reason":"no"}],"Local"`, 1),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := []string{"--lease-file=" + leases, "--net-config-path=" + conf}
	for _, command := range [][]string{
		{program, "status", "--checkpoint-file=" + checkpoint},
		append([]string{program, "plan", "--node=n1", "--iface=" + hostile}, files...),
		append([]string{agent, "--dry-run", "--node-name=n1", "--iface=" + hostile, "--checkpoint-file=" + filepath.Join(dir, "none")}, files...),
	} {
		out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
		t.Logf("%q: %v\n%s", command, err, out)
		harmless(t, strings.Join(command[:2], " "), string(out))
	}
}
