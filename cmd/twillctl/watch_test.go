package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testwait"
)

// threeNodes are what a node's twillctl prints: one is fine, one has an agent that is down, and one steers terminals.
const threeNodes = `{"nodes":[{"node":"n1","backend":"vxlan","subnets":["10.244.1.0/24"],"underlay":["192.0.2.1"],"mtu":1450,"agent":"ready","version":"v1",
"peers":[{"node":"n2","inSync":true}],"findings":[]},
{"node":"n2","backend":"vxlan","subnets":["10.244.2.0/24"],"underlay":["192.0.2.2"],"mtu":1450,"agent":"down",
"peers":[{"node":"n1","inSync":false,"reason":"no route"}],"findings":["agent-down","route-missing"]},
{"node":"n3` + "\\u001b[2J" + `","agent":"ready"}]}`

func statusKubectl(t *testing.T) fakeKubectl {
	t.Helper()
	return newFakeKubectl(t, map[string]string{"exec": threeNodes, "get.json": list(ownSet, podJSON("twill-abc", "n1", "DaemonSet", "1"))})
}

// output is what a program has written so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// onTerminal runs the plugin on a terminal of six lines, and gives what it is sent. It is interrupted when it has
// begun so many frames, if any. script(1) makes the terminal.
func (k fakeKubectl) onTerminal(env string, frames int, args string) string {
	k.Helper()
	if _, err := exec.LookPath("script"); err != nil {
		k.Skip("needs script(1), of the package bsdutils")
	}
	cmd := exec.CommandContext(k.Context(), "script", "--quiet", "--return", "--command", "stty rows 6 cols 80; exec "+k.plugin+" "+args, "/dev/null")
	cmd.Env, cmd.Dir = []string{"PATH=" + k.dir + ":/usr/bin:/bin", "TERM=xterm", env}, k.dir
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err != nil {
		k.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		k.Fatal(err)
	}
	if frames > 0 {
		testwait.Until(k, "frames are shown", func() bool { return strings.Count(out.String(), home) >= frames })
		if _, err := in.Write([]byte{3}); err != nil { // Ctrl-C
			k.Fatal(err)
		}
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		k.Errorf("%s: exit code %d, want 1, because something is wrong\n%s", args, code, out.String())
	}
	return strings.ReplaceAll(out.String(), "\r\n", "\n")
}

// TestColours: only on a terminal, only around the words that they are for, and not where the user wants none. What a node
// says stays harmless.
func TestColours(t *testing.T) {
	k := statusKubectl(t)
	piped, code := k.run("status")
	if code != 1 || strings.Contains(piped, "\x1b") || !strings.Contains(piped, `n3\u001b[2J`) {
		t.Errorf("into a pipe: %d, %q", code, piped)
	}
	colour := regexp.MustCompile("\x1b\\[[0-9]*m")
	got := k.onTerminal("A=", 0, "status")
	if plain := colour.ReplaceAllString(got, ""); plain != piped {
		t.Errorf("without its colours the text is\n%q\nwant\n%q", plain, piped)
	}
	for _, want := range []string{"\x1b[1mNODE ", "\x1b[32mready\x1b[m ", "\x1b[31mdown\x1b[m ", "\x1b[32mnone\x1b[m\n",
		"\x1b[31magent-down route-missing\x1b[m\n", "\x1b[31m✗ n2 → n1: no route\x1b[m\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if got := k.onTerminal("NO_COLOR=1", 0, "status"); got != piped {
		t.Errorf("with NO_COLOR: %q", got)
	}
	if got := k.onTerminal("TERM=dumb", 0, "status"); got != piped {
		t.Errorf("on a dumb terminal: %q", got)
	}
	if got := k.onTerminal("A=", 0, "status -o json"); strings.Contains(got, "\x1b") {
		t.Errorf("JSON: %q", got)
	}
}

// TestWatch: on a terminal each status takes the place of the one before, and as many lines as there is room for. Into a
// pipe they follow each other. What fails once is asked again.
func TestWatch(t *testing.T) {
	k := statusKubectl(t)
	got := k.onTerminal("A=", 5, "status -w --interval=300ms")
	frames := strings.Split(got, home)[2:] // behind the first clearing
	if len(frames) < 3 || !strings.HasPrefix(got, noWrap+home+clearRest) || !strings.HasSuffix(strings.TrimSpace(got), wrap) {
		t.Fatalf("%d frames: %q", len(frames), got)
	}
	for _, f := range frames {
		if n := strings.Count(f, "\n"); n > 5 || !strings.Contains(f, "again every 300ms") || !strings.Contains(f, clearRest) {
			t.Errorf("a frame has %d lines: %q", n, f)
		}
	}
	if out, code := k.run("status", "--watch", "--interval=1ms"); code != 2 || !strings.Contains(out, "--interval 1ms: want 100ms or more") {
		t.Errorf("%d, %s", code, out)
	}
	if out, code := k.run("status", "--watch", "--output=xml"); code != 2 || !strings.Contains(out, `--output "xml": want text or json`) {
		t.Errorf("%d, %s", code, out)
	}
	cmd := exec.CommandContext(t.Context(), k.plugin, "status", "--watch", "--interval=100ms")
	cmd.Env, cmd.Dir = []string{"PATH=" + k.dir + ":/usr/bin:/bin"}, k.dir
	var out output
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "two statuses", func() bool { return strings.Count(out.String(), "NODE ") >= 2 })
	if err := os.Rename(filepath.Join(k.dir, "get.json"), filepath.Join(k.dir, "away")); err != nil {
		t.Fatal(err)
	}
	const failure = "✗ kubectl get: "
	testwait.Until(t, "a failure", func() bool { return strings.Contains(out.String(), failure) })
	if err := os.Rename(filepath.Join(k.dir, "away"), filepath.Join(k.dir, "get.json")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "a status after it", func() bool {
		_, after, _ := strings.Cut(out.String(), failure)
		return strings.Contains(after, "NODE ")
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	good, bad, again := strings.Cut(out.String(), failure)
	if n := strings.Count(good, "NODE "); n < 2 || !again || !strings.Contains(bad, "NODE ") || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("exit code %d:\n%s", cmd.ProcessState.ExitCode(), out.String())
	}
}

// TestWait: it returns at once when all is well, says what it waits for once each time, and shows the last answer when its
// patience ends.
func TestWait(t *testing.T) {
	wrong := doctor.StatusReport{Nodes: []doctor.Status{{Node: "n1"}, {Node: "n2", Findings: []string{"no-lease"}}}, Silent: []string{"n3: gone"}}
	well := doctor.StatusReport{Nodes: []doctor.Status{{Node: "n1"}, {Node: "n2"}}}
	away := errors.New("the API server is away")
	for _, tt := range []struct {
		name    string
		answers []any // of a doctor.StatusReport or an error; the last one stays
		said    string
		want    error
	}{
		{"well", []any{well}, "", nil},
		{"later", []any{away, away, wrong, wrong, well}, "waits: the API server is away\n" +
			"waits for 2 of 3 nodes: n2 (no-lease), n3 (no answer)\n", nil},
		{"never", []any{wrong}, "waits for 2 of 3 nodes: n2 (no-lease), n3 (no answer)\n", errFindings},
		{"away", []any{away}, "waits: the API server is away\n", away},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				var out, progress bytes.Buffer
				v := statusView{out: &out, output: "text", ask: func(ctx context.Context) (doctor.StatusReport, error) {
					if ctx.Err() != nil {
						return doctor.StatusReport{}, ctx.Err()
					}
					answer := tt.answers[min(asked, len(tt.answers)-1)]
					asked++
					if err, ok := answer.(error); ok {
						return doctor.StatusReport{}, err
					}
					return answer.(doctor.StatusReport), nil
				}}
				err := v.wait(t.Context(), time.Second, time.Minute, &progress)
				if !errors.Is(err, tt.want) || progress.String() != tt.said {
					t.Errorf("%v, want %v; said\n%swant\n%s", err, tt.want, &progress, tt.said)
				}
				if shows := strings.Count(out.String(), "NODE ") + strings.Count(out.String(), "✗ the API"); shows != 1 {
					t.Errorf("%d answers are shown:\n%s", shows, &out)
				}
			})
		})
	}
}
