package cloudroute

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/backendtest"
	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/subnet"
)

var (
	pools = []subnet.Pool{{Network: netip.MustParsePrefix("10.244.0.0/16"), SubnetLen: 24}}
	local = netip.MustParseAddr("192.0.2.1")
)

// TestOptions: flannel's configurations parse as its documentation has them, typos warn, and no secret is printed.
func TestOptions(t *testing.T) {
	for _, test := range []struct {
		kind, raw string
		tables    []string
		warn, err string
	}{
		{kind: "aws-vpc", raw: `{"Type":"aws-vpc"}`},
		{kind: "aws-vpc", raw: `{"Type":"aws-vpc","RouteTableID":"rtb-1"}`, tables: []string{"rtb-1"}},
		{kind: "aws-vpc", raw: `{"Type":"aws-vpc","RouteTableID":["rtb-1","rtb-2"]}`, tables: []string{"rtb-1", "rtb-2"}},
		{kind: "aws-vpc", raw: `{"Type":"aws-vpc","RouteTableID":""}`},
		{kind: "aws-vpc", raw: `{"Type":"aws-vpc","RouteTableID":7}`, err: `RouteTableID is 7: want a string such as "rtb-0123", or a list of them`},
		{kind: "aws-vpc", raw: `{"Type":"aws-vpc","RouteTableID":["rtb-1",""]}`, err: "RouteTableID has an empty name"},
		{kind: "aws-vpc", raw: `{"Type":"aws-vpc","RouteTable":"x"}`, warn: `unknown key "RouteTable"`},
		{kind: "gce", raw: `{"Type":"gce"}`},
		{kind: "gce", raw: `{"Type":"gce","RouteTableID":"x"}`, warn: `unknown key "RouteTableID"`},
		{kind: "ali-vpc", raw: `{"Type":"ali-vpc"}`},
		{kind: "ali-vpc", raw: `{"Type":"ali-vpc","AccessKeyID":"id","AccessKeySecret":"hush"}`, warn: "AccessKeySecret"},
		{kind: "ali-vpc", raw: `{"Type":"ali-vpc","AccessKeySecret":"hush"}`, err: "belong together", warn: "AccessKeySecret"},
	} {
		b, warnings, err := New(test.kind, pools)(nil, json.RawMessage(test.raw))
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: error %v, want %q", test.raw, err, test.err)
		}
		if text := strings.Join(warnings, "\n"); !strings.Contains(text, test.warn) || test.warn == "" && text != "" {
			t.Errorf("%s: warnings %q, want %q", test.raw, text, test.warn)
		}
		if got := b.(*Backend).options.Tables; err == nil && !slices.Equal(got, test.tables) {
			t.Errorf("%s: tables %v, want %v", test.raw, got, test.tables)
		}
		if printed := fmt.Sprintf("%+v %#v %v %v", b, b.(*Backend).options, warnings, err); strings.Contains(printed, "hush") {
			t.Errorf("the secret is printed: %s", printed)
		}
	}
}

// TestRequire: a program without clouds says so at its start.
func TestRequire(t *testing.T) {
	b, _, _ := New("gce", pools)(nil, nil)
	if err := b.(backend.Requirer).Require(); err == nil || !strings.Contains(err.Error(), "backend gce is a cloud's, and this twilld was built without clouds: take that of make build, or of the image ghcr.io/twill-net/twill") {
		t.Errorf("got %v", err)
	}
	b.(*Backend).Provide(map[string]cloud.Opener{"gce": func(cloud.Options) (cloud.Cloud, error) { return nil, nil }})
	if err := b.(backend.Requirer).Require(); err != nil {
		t.Error(err)
	}
}

// world is a network with this node, and a backend that uses it.
type world struct {
	*fake.Network
	openers map[string]cloud.Opener
	backend *Backend
	dir     string

	mu     sync.Mutex
	health backend.Health
}

func newWorld(t *testing.T) *world {
	w := &world{Network: &fake.Network{ID: "vpc-1"}, dir: t.TempDir()}
	w.AddNIC(fake.NIC{ID: "eni-1", Addrs: []netip.Addr{local}, Forwards: true})
	w.openers = map[string]cloud.Opener{"aws-vpc": func(o cloud.Options) (cloud.Cloud, error) { return w.Node("eni-1", o.Tables...), nil }}
	b, _, err := New("aws-vpc", pools)(nil, json.RawMessage(`{"RouteTableID":["rtb-1","rtb-2"]}`))
	if err != nil {
		t.Fatal(err)
	}
	w.backend = b.(*Backend)
	w.backend.Provide(w.openers)
	return w
}

func (w *world) env() backend.Env {
	return backend.Env{Dir: w.dir, Log: slog.New(slog.DiscardHandler), Report: func(h backend.Health) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.health = h
	}}
}

func (w *world) Health() backend.Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.health
}

func input(own string) backend.Input {
	lease := subnet.Lease{Node: "node1", Stacks: []subnet.Stack{{Subnet: netip.MustParsePrefix(own), Underlay: local}}}
	return backend.Input{Node: backend.Node{Name: "node1", Underlays: []backend.Underlay{{Local: local}}},
		Snapshot: subnet.Snapshot{Local: lease}, Synced: true}
}

func routes(target string, dst string) (all []cloud.Route) {
	for _, table := range []string{"rtb-1", "rtb-2"} {
		all = append(all, cloud.Route{Table: table, Dst: netip.MustParsePrefix(dst), Target: target})
	}
	return all
}

// run runs the backend for a while.
func (w *world) run(t *testing.T, own string, d time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	inputs, done := make(chan backend.Input, 1), make(chan error, 1)
	go func() { done <- w.backend.Run(ctx, w.env(), inputs) }()
	inputs <- input(own)
	time.Sleep(d)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	synctest.Wait()
}

// TestRun: every listed table is kept, the record is written, and an agent that starts again writes nothing.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		plan, err := w.backend.Plan(t.Context(), w.env(), input("10.244.1.0/24"))
		if want := []string{"+ rtb-1 10.244.1.0/24 via eni-1", "+ rtb-2 10.244.1.0/24 via eni-1"}; err != nil || !slices.Equal(plan, want) {
			t.Errorf("plan %q, %v; want %q", plan, err, want)
		}
		w.run(t, "10.244.1.0/24", 5*time.Minute)
		if got := w.Routes(); !slices.Equal(got, routes("eni-1", "10.244.1.0/24")) {
			t.Errorf("routes %v", got)
		}
		if h := w.Health(); !h.Seen || h.Err != nil || len(h.Troubles) > 0 || h.Writes != 2 || h.Calls < 5 {
			t.Errorf("health %+v", h)
		}
		w.run(t, "10.244.1.0/24", 5*time.Minute)
		if _, writes := w.Calls(); writes != 2 {
			t.Errorf("%d writes after a second start, want 2", writes)
		}
		info, err := os.Stat(filepath.Join(w.dir, recordFile))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("record: %v, %v", info.Mode(), err)
		}
	})
}

// TestLog: what fails is in the log, and that it works.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var lines []string
		env := w.env()
		env.Log = backendtest.Log(func(line string) { lines = append(lines, line) })
		f := report(env)
		for range 20 {
			f(cloud.Health{Err: cloud.ErrFull})
			time.Sleep(time.Minute)
		}
		f(cloud.Health{Seen: true})
		f(cloud.Health{Seen: true})
		text := strings.Join(lines, "")
		for part, want := range map[string]int{cloud.ErrFull.Error(): 2, "can be kept again": 1, "leads packets to this node's pods": 1} {
			if got := strings.Count(text, part); got != want {
				t.Errorf("%q %d times, want %d\n%s", part, got, want, text)
			}
		}
	})
}

// TestCleanup deletes what is still this node's, and nothing else.
func TestCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if lines, err := Cleanup(t.Context(), w.dir, w.openers); err != nil || len(lines) > 0 {
			t.Errorf("without a record: %q, %v", lines, err)
		}
		w.run(t, "10.244.1.0/24", time.Minute)
		foreign := cloud.Route{Table: "rtb-1", Dst: netip.MustParsePrefix("10.244.9.0/24"), Target: "eni-1"}
		taken := routes("eni-9", "10.244.1.0/24")[1]
		w.Set(routes("eni-1", "10.244.1.0/24")[0], taken, foreign)
		lines, err := Cleanup(t.Context(), w.dir, w.openers)
		if want := []string{"- rtb-1 10.244.1.0/24 via eni-1"}; err != nil || !slices.Equal(lines, want) {
			t.Errorf("%q, %v; want %q", lines, err, want)
		}
		if got := w.Routes(); !slices.Equal(got, []cloud.Route{taken, foreign}) {
			t.Errorf("left %v", got)
		}
		if lines, err := Cleanup(t.Context(), w.dir, w.openers); err != nil || len(lines) > 0 {
			t.Errorf("a second time: %q, %v", lines, err)
		}
	})
}

// TestCleanupElsewhere: the record of another machine, as a copy of its disk has it, deletes nothing, and the error says what to do.
func TestCleanupElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run(t, "10.244.1.0/24", time.Minute)
		before := w.Routes()
		w.AddNIC(fake.NIC{ID: "eni-1", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.99")}, Forwards: true})
		if _, err := Cleanup(t.Context(), w.dir, w.openers); err == nil || !strings.Contains(err.Error(), "delete the file if") {
			t.Errorf("%v", err)
		}
		if got := w.Routes(); len(got) == 0 || !slices.Equal(got, before) {
			t.Errorf("left %v, want %v", got, before)
		}
	})
}

// TestCleanupAway: while the API is away nothing is forgotten.
func TestCleanupAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run(t, "10.244.1.0/24", time.Minute)
		w.Break(fake.Faults{Fail: func(string) error { return cloud.ErrThrottled }})
		if _, err := Cleanup(t.Context(), w.dir, w.openers); err == nil {
			t.Error("no error")
		}
		if _, err := os.Stat(filepath.Join(w.dir, recordFile)); err != nil {
			t.Error(err)
		}
		if _, err := Cleanup(t.Context(), w.dir, nil); err == nil || !strings.Contains(err.Error(), "aws-vpc") {
			t.Errorf("a program without clouds: %v", err)
		}
	})
}
