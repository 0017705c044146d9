package extension

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/backendtest"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

var networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fc00::/48")}

// lease is node n's, with both families.
func lease(n int, data string) subnet.Lease {
	raw, _ := json.Marshal(data)
	return subnet.Lease{Node: fmt.Sprintf("n%d", n), Backend: "extension", Stacks: []subnet.Stack{
		{Subnet: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)), Underlay: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", n)), Data: raw},
		{Subnet: netip.MustParsePrefix(fmt.Sprintf("fc00:0:0:%d::/64", n)), Underlay: netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", n)), Data: raw}}}
}

// trial is a backend whose commands write what they got to a file.
type trial struct {
	*testing.T
	dir   string
	out   string
	mu    sync.Mutex
	said  []string
	views chan backend.Input
}

const heard = `(echo "%s $NETWORK $IPV6NETWORK|$SUBNET $PUBLIC_IP|$IPV6SUBNET $PUBLIC_IPV6|$(cat)") | tr '\n' '.' >> %[2]s; echo >> %[2]s`

func newTrial(t *testing.T) *trial {
	dir := t.TempDir()
	return &trial{T: t, dir: dir, out: filepath.Join(dir, "out")}
}

func (tr *trial) env() backend.Env {
	return backend.Env{Dir: tr.dir, Log: backendtest.Log(func(line string) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.said = append(tr.said, line)
	})}
}

func (tr *trial) heard(word string) string { return fmt.Sprintf(heard, word, tr.out) }

func (tr *trial) backend(more string) backend.Runner {
	tr.Helper()
	o := map[string]any{"Type": "extension", "Shell": true, "PreStartupCommand": "printf 'my key'", "PostStartupCommand": tr.heard("post"),
		"SubnetAddCommand": tr.heard("add") + more, "SubnetRemoveCommand": tr.heard("remove"), "ShutdownCommand": tr.heard("shutdown")}
	raw, _ := json.Marshal(o)
	b, warnings, err := New(networks, raw)
	if err != nil || len(warnings) > 0 {
		tr.Fatal(warnings, err)
	}
	return b.(backend.Runner)
}

// start runs b until stop.
func (tr *trial) start(b backend.Runner) (stop func()) {
	ctx, cancel := context.WithCancel(tr.Context())
	tr.views = make(chan backend.Input)
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx, tr.env(), tr.views) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			tr.Error(err)
		}
	}
}

func (tr *trial) show(synced bool, peers ...subnet.Lease) {
	tr.views <- backend.Input{Snapshot: subnet.Snapshot{Local: lease(1, "my key"), Peers: peers}, Synced: synced}
}

// wants waits for exactly these lines, and takes them out of the file.
func (tr *trial) wants(lines ...string) {
	tr.Helper()
	want := strings.Join(lines, "\n")
	testwait.Nil(tr, "the commands run", func() error {
		data, _ := os.ReadFile(tr.out)
		if got := strings.TrimSpace(string(data)); got != want {
			return fmt.Errorf("they got\n%s\nwant\n%s", got, want)
		}
		return nil
	})
	if err := os.Remove(tr.out); err != nil && want != "" {
		tr.Error(err)
	}
}

func line(word string, n int, data string) string {
	nets := " "
	if word == "post" || word == "shutdown" {
		nets = "10.244.0.0/16 fc00::/48"
	}
	return fmt.Sprintf("%s %s|10.244.%d.0/24 192.0.2.%d|fc00:0:0:%d::/64 2001:db8::%d|%s.", word, nets, n, n, n, n, data)
}

func TestCommands(t *testing.T) {
	tr := newTrial(t)
	b := tr.backend("")
	if err := b.Prepare(t.Context(), tr.env()); err != nil {
		t.Fatal(err)
	}
	if data, err := b.Publish(backend.Node{}, subnet.Lease{}, netstate.IPv4); err != nil || string(data) != `"my key"` {
		t.Errorf("publishes %s, %v", data, err)
	}
	stop := tr.start(b)
	tr.show(true, lease(2, "key 2"), lease(3, "key 3"))
	tr.wants(line("post", 1, ""), line("add", 2, "key 2"), line("add", 3, "key 3"))
	tr.show(true, lease(2, "key 2"), lease(3, "new 3"))
	tr.wants(line("add", 3, "new 3"))
	tr.show(true, lease(3, "new 3"))
	tr.wants(line("remove", 2, "key 2"))
	tr.show(false) // remembered: nobody has left
	tr.show(true, lease(3, "new 3"))
	stop()
	tr.wants(line("shutdown", 1, ""))

	// The next run adds again what is there, and removes what left while no agent ran.
	stop = tr.start(tr.backend(""))
	tr.show(true, lease(4, "key 4"))
	tr.wants(line("post", 1, ""), line("remove", 3, "new 3"), line("add", 4, "key 4"))
	stop()
	tr.wants(line("shutdown", 1, ""))
	stop = tr.start(tr.backend(""))
	tr.show(true, lease(4, "key 4"))
	tr.wants(line("post", 1, ""), line("add", 4, "key 4"))
	stop()
	tr.wants(line("shutdown", 1, ""))
}

// TestMoved: a node with another subnet is removed with the old one.
func TestMoved(t *testing.T) {
	tr := newTrial(t)
	stop := tr.start(tr.backend(""))
	tr.show(true, lease(2, "k"))
	tr.wants(line("post", 1, ""), line("add", 2, "k"))
	moved := lease(5, "k")
	moved.Node = "n2"
	tr.show(true, moved)
	tr.wants(line("remove", 2, "k"), line("add", 5, "k"))
	stop()
	tr.wants(line("shutdown", 1, ""))
}

// TestFailure: the output is told, others go on, and the next view tries again.
func TestFailure(t *testing.T) {
	tr := newTrial(t)
	bad := filepath.Join(tr.dir, "bad")
	if err := os.WriteFile(bad, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stop := tr.start(tr.backend(`; if [ -e ` + bad + ` ] && [ "$SUBNET" = 10.244.2.0/24 ]; then echo no such cloud >&2; exit 3; fi`))
	tr.show(true, lease(2, "k"), lease(3, "k"))
	tr.wants(line("post", 1, ""), line("add", 2, "k"), line("add", 3, "k"))
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	tr.show(true, lease(2, "k"), lease(3, "k"))
	tr.wants(line("add", 2, "k"))
	stop()
	tr.wants(line("shutdown", 1, ""))
	if said := strings.Join(tr.said, "\n"); strings.Count(said, `exit status 3: no such cloud"`) != 1 {
		t.Errorf("said:\n%s", said)
	}
}

func TestRun(t *testing.T) {
	run := Options{Shell: true}.run
	err := ends(t, func() error {
		_, err := run(t.Context(), 200*time.Millisecond, "sleep infinity & sleep infinity", "")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "it took longer than 200ms") {
		t.Errorf("a command without an end: %v", err)
	}
	shown := "exit status 1: " + strings.Repeat("x", 500)
	if _, err := run(t.Context(), patience, "head -c 5000 /dev/zero | tr '\\0' x; exit 1", ""); err == nil || !strings.HasSuffix(err.Error(), shown) {
		t.Errorf("a long output: %v", err)
	}
	if out, err := run(t.Context(), patience, "cat; echo $A", "in ", "A=b"); out != "in \nb" || err != nil {
		t.Errorf("%q %v", out, err)
	}
}

// ends returns the error of f, which has to end.
func ends(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(testwait.Limit):
		t.Fatal("it does not end")
		return nil
	}
}

// TestRetry: a command that failed is run again without a view after a while, others are not.
func TestRetry(t *testing.T) { synctest.Test(t, testRetry) }

func testRetry(t *testing.T) {
	tr := newTrial(t)
	once := filepath.Join(tr.dir, "once")
	stop := tr.start(tr.backend(`; if [ "$SUBNET" = 10.244.2.0/24 ]; then mkdir ` + once + ` 2>/dev/null && exit 1 || true; fi`))
	tr.show(true, lease(2, "k"), lease(3, "k"))
	synctest.Wait()
	tr.wants(line("post", 1, ""), line("add", 2, "k"), line("add", 3, "k"))
	time.Sleep(retry - time.Millisecond)
	synctest.Wait()
	if data, err := os.ReadFile(tr.out); err == nil {
		t.Errorf("tried again before %s were over:\n%s", retry, data)
	}
	time.Sleep(time.Millisecond)
	synctest.Wait()
	tr.wants(line("add", 2, "k"))
	time.Sleep(10 * retry)
	synctest.Wait()
	if data, err := os.ReadFile(tr.out); err == nil {
		t.Errorf("tried again after it succeeded:\n%s", data)
	}
	stop()
	tr.wants(line("shutdown", 1, ""))
}

// TestWithoutCommands: what is not set is not run.
func TestWithoutCommands(t *testing.T) {
	tr := newTrial(t)
	b, _, err := New(networks, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	r := b.(backend.Runner)
	if err := r.Prepare(t.Context(), tr.env()); err != nil {
		t.Fatal(err)
	}
	if data, err := b.Publish(backend.Node{}, subnet.Lease{}, netstate.IPv4); data != nil || err != nil {
		t.Errorf("publishes %s, %v, want nothing, as flannel does", data, err)
	}
	stop := tr.start(r)
	tr.show(true, lease(2, "k"))
	tr.show(true)
	stop()
	if len(tr.said) > 0 {
		t.Errorf("said %q", tr.said)
	}
}

// TestDesired: paths are the commands'; what cannot be used is told.
func TestDesired(t *testing.T) {
	b, _, err := New(networks, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	state, skips := b.Desired(backend.Node{}, subnet.Snapshot{Local: lease(1, ""), Peers: []subnet.Lease{lease(2, ""), {Node: "n3", Backend: "vxlan"}}})
	if len(state) != 0 || len(skips) != 1 || skips[0].Node != "n3" {
		t.Errorf("wants\n%sand leaves out %v, want nothing and n3", state, skips)
	}
	if mtu := b.MTU(backend.Node{Underlays: []backend.Underlay{{MTU: 1500}, {MTU: 1400}}}); mtu != 1400 {
		t.Errorf("MTU %d, want the smallest underlay's 1400", mtu)
	}
}

func TestPrepareFails(t *testing.T) {
	b, _, err := New(networks, []byte(`{"PreStartupCommand":"echo broken; false","Shell":true,"Typo":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.(backend.Runner).Prepare(t.Context(), newTrial(t).env()); err == nil || !strings.HasSuffix(err.Error(), "exit status 1: broken") {
		t.Errorf("got %v", err)
	}
	if data, _ := b.Publish(backend.Node{}, subnet.Lease{}, netstate.IPv4); data != nil {
		t.Errorf("publishes %s", data)
	}
}

// TestDamagedFile: a file that cannot be read costs the commands one more run, and is told.
func TestDamagedFile(t *testing.T) {
	for _, text := range []string{"{", "null", "[]"} {
		tr := newTrial(t)
		if err := os.WriteFile(filepath.Join(tr.dir, "extension.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		stop := tr.start(tr.backend(""))
		tr.show(true, lease(2, "k"))
		tr.wants(line("post", 1, ""), line("add", 2, "k"))
		stop()
		if len(tr.said) == 0 || !strings.Contains(tr.said[0], "starting without it") {
			t.Errorf("%s: said %q", text, tr.said)
		}
	}
}

// TestFileOfOthers: the file holds what peers published, for root's eyes; a run that cannot read it ends
// instead of forgetting for whom the commands ran.
func TestFileOfOthers(t *testing.T) {
	tr := newTrial(t)
	stop := tr.start(tr.backend(""))
	tr.show(true, lease(2, "k"))
	tr.wants(line("post", 1, ""), line("add", 2, "k"))
	tr.show(true, lease(2, "k")) // taken when the first is remembered
	stop()
	path := filepath.Join(tr.dir, "extension.json")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, error %v, want the mode 0600", info, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	if err := tr.backend("").Run(ctx, tr.env(), make(chan backend.Input)); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Run with a directory in the file's place: %v, want an error that names it", err)
	}
}

// TestWithoutShell: a peer that tells of a command in its data, or an administrator who writes one, gets
// text and no command (CVE-2026-32241). Words are split before variables are put in, so that a value stays
// one argument.
func TestWithoutShell(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TWILL_SPACES", "two  words; touch "+dir+"/pwned")
	hostile := "$(touch " + dir + "/pwned); `touch " + dir + "/pwned`\ntouch " + dir + "/pwned"
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nfor a; do printf '%s|' \"$a\"; done; cat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := append(placeOf(lease(2, hostile).Stacks).environment(), "SCRIPT="+script)
	for command, want := range map[string]string{
		"$SCRIPT ${SUBNET} via $PUBLIC_IP":                                   "10.244.2.0/24|via|192.0.2.2|" + hostile,
		script + " $TWILL_SPACES":                                            "two  words; touch " + dir + "/pwned|" + hostile,
		script + " a; touch " + dir + "/pwned && $(touch " + dir + "/pwned)": "a;|touch|" + dir + "/pwned|&&|$(touch|" + dir + "/pwned)|" + hostile,
		"cat": hostile,
		" ":   "",
	} {
		if out, err := (Options{}).run(t.Context(), patience, command, placeOf(lease(2, hostile).Stacks).Data, env...); out != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", command, out, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "pwned")); err == nil {
		t.Error("a command in the data ran")
	}
}

func TestShellIsToldOf(t *testing.T) {
	for text, want := range map[string]string{
		`{"SubnetAddCommand":"ip route replace $SUBNET via $PUBLIC_IP"}`: "",
		`{"SubnetAddCommand":"read key; true"}`:                          `SubnetAddCommand has a shell's syntax, and runs without one: set "Shell": true, or name a script`,
		`{"SubnetAddCommand":"read key; true","Shell":true}`:             "",
	} {
		if _, warnings, err := New(networks, []byte(text)); err != nil || strings.Join(warnings, " ") != want {
			t.Errorf("%s: %q, %v", text, warnings, err)
		}
	}
}

// TestRequire is the image without a shell.
func TestRequire(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:             "",
		`{"Shell":true}`: "",
		`{"Shell":true,"SubnetAddCommand":"[ -n \"$SUBNET\" ]"}`: "the backend extension's SubnetAddCommand needs sh, and there is none: " +
			"a shell and usual commands are in the variant -full of Twill's image",
		`{"ShutdownCommand":"true","PostStartupCommand":"$TWILL_PROGRAM x"}`: "the backend extension's ShutdownCommand needs true, and there is none: " +
			"a shell and usual commands are in the variant -full of Twill's image",
		`{"PostStartupCommand":"$TWILL_PROGRAM x"}`: "",
	} {
		b, _, err := New(networks, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		r := b.(backend.Requirer)
		if err := r.Require(); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		path := os.Getenv("PATH")
		t.Setenv("PATH", t.TempDir())
		if err := r.Require(); (want == "") != (err == nil) || err != nil && err.Error() != want {
			t.Errorf("%s, without sh: %v, want %s", text, err, want)
		}
		t.Setenv("PATH", path)
	}
}
