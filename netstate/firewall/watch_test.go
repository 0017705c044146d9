package firewall

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/netstatetest"
)

// TestNoFork counts the processes that observing starts.
func TestNoFork(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "nft", "ip")
		loadFlannel(t)
		sh(t, "ip link set lo up")
		log := filepath.Join(t.TempDir(), "log")
		countForks(t, log)
		settle(t, f, wanted(g.mode))
		before := lines(t, log)
		for i := range 50 {
			if i == 25 { // another program's rules and generation move
				sh(t, "nft add table ip foreign; nft add chain ip nat OTHER; nft add rule ip nat OTHER counter")
			}
			traffic(t)
			state, err := f.Observe(t.Context())
			if left := netstate.Diff(wanted(g.mode), state); err != nil || len(left) > 0 {
				t.Fatalf("round %d: %v, the plan is\n%s", i, err, left)
			}
		}
		if after := lines(t, log); len(after) != len(before) {
			t.Errorf("50 rounds of observing started\n%s", strings.Join(after[len(before):], "\n"))
		}
		if g.mode == netstate.IPTables && len(before) == 0 {
			t.Error("the counter of processes has counted nothing: want some for the first plan")
		}
	})
}

// countForks puts a program before each iptables binary that writes a line to log.
func countForks(t *testing.T, log string) {
	dir := t.TempDir()
	for _, name := range []string{
		"iptables", "ip6tables", "iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy",
	} {
		for _, suffix := range []string{"", "-restore", "-save"} {
			path := strings.TrimSpace(sh(t, "command -v "+name+suffix))
			script := fmt.Sprintf("#!/bin/sh\necho %s \"$@\" >> %s\nexec %s \"$@\"\n", name+suffix, log, path)
			if err := os.WriteFile(filepath.Join(dir, name+suffix), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", dir+":"+pathVar())
}

func lines(t *testing.T, file string) []string {
	data, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")[:strings.Count(string(data), "\n")]
}

// traffic moves the counters of the base chains.
func traffic(t *testing.T) {
	conn, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte("x"))
}

// TestWatchFails: without a socket there are no events, and Watch returns an error.
func TestWatchFails(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err := New().Watch(t.Context())
	if restore := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); restore != nil || !errors.Is(err, unix.EMFILE) {
		t.Errorf("watch without a file descriptor: %v; restore: %v", err, restore)
	}
}

// TestLegacyWrite: what was written is read at once, however young the last reading is.
func TestLegacyWrite(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	useVariant(t, legacy)
	f := New()
	defer f.Close()
	for _, want := range []netstate.State{{}, wanted(netstate.IPTables), {}} {
		if err := f.Apply(t.Context(), netstate.Diff(want, observe(t, f))); err != nil {
			t.Fatal(err)
		}
		state, err := f.Observe(t.Context())
		if left := netstate.Diff(want, state); err != nil || len(left) > 0 {
			t.Errorf("%v, the plan is\n%s", err, left)
		}
	}
}

// TestLegacyEvent: after an event the legacy tables are read, however young the last reading is.
func TestLegacyEvent(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	useVariant(t, legacy)
	f := New()
	defer f.Close()
	settle(t, f, wanted(netstate.IPTables))
	f.legacyInterval = 50 * time.Millisecond
	events, err := f.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.legacyInterval = time.Hour
	sh(t, "iptables-legacy -F FLANNEL-FWD")
	for {
		await(t, events, "the legacy tables are flushed")
		state, err := f.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(netstate.Diff(wanted(netstate.IPTables), state)) == 1 {
			return
		}
	}
}

// watch returns the events of f. Where the kernel announces changes, only what it announces is one: nothing is polled.
// The tables of iptables-legacy are looked at when look is called, and then only.
func (g ground) watch(t *testing.T, f *Firewall) (events <-chan struct{}, look func()) {
	t.Helper()
	f.legacyInterval = time.Hour
	poll := f.legacyPoll()
	events, err := f.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if g.name != "iptables-legacy" {
		return events, func() {}
	}
	seen := make(chan struct{}, 1)
	return seen, func() { poll(seen) }
}

// await waits for an event.
func await(t *testing.T, events <-chan struct{}, what string) {
	t.Helper()
	select {
	case _, ok := <-events:
		if !ok {
			t.Fatalf("%s: the channel was closed", what)
		}
	case <-time.After(testwait.Limit):
		t.Fatalf("%s: no event", what)
	}
}

// quiet waits until no event comes, and reports whether any came.
func quiet(t *testing.T, events <-chan struct{}) (came bool) {
	t.Helper()
	return netstatetest.Quiet(t, events, 200*time.Millisecond)
}

// TestWatch wants an event after each disturbance, from the kernel or from the next look, and none without one. One
// plan repairs it, and then there is silence.
func TestWatch(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, f *Firewall) {
		need(t, "nft")
		settle(t, f, wanted(g.mode))
		events, look := g.watch(t, f)
		if g.name != "iptables-legacy" {
			sh(t, "nft add table ip foreign; nft add chain ip foreign c; nft add rule ip foreign c counter")
		}
		for range 2 {
			if look(); quiet(t, events) {
				t.Error("an event without a change of ours")
			}
		}
		for _, d := range append(slices.Clone(drifts[g.name][:1]), map[netstate.Mode][]string{
			netstate.NFTables: {"nft flush table ip flannel-ipv4", "nft flush table ip6 flannel-ipv6"},
			netstate.IPTables: {"iptables -t nat -F POSTROUTING", "ip6tables -t nat -F POSTROUTING"},
		}[g.mode]...) {
			sh(t, d)
			look()
			await(t, events, d)
			settle(t, f, wanted(g.mode))
			look() // which sees the repair
			quiet(t, events)
			if look(); quiet(t, events) {
				t.Errorf("%s: an event after the repair", d)
			}
		}
	})
}

// BenchmarkObserve is one look at rules that stand still, on the machine as it is; it only reads.
func BenchmarkObserve(b *testing.B) {
	f := New()
	defer f.Close()
	for b.Loop() {
		if _, err := f.Observe(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
