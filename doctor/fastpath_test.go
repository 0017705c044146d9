package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
)

// TestFastPath: what is said of the fast path as a whole, and in the status.
func TestFastPath(t *testing.T) {
	later := time.Now().Add(time.Minute)
	on := func(f *Facts) {
		f.Agent.FastPath = &FastPathStatus{On: true}
		f.FastPath = FastPath{Wanted: true, Compared: true, Devices: []string{"cni0", "flannel.1"}, Deadline: later, Tracked: 100}
	}
	for name, test := range map[string]struct {
		alter       func(*Facts)
		want, state string
	}{
		"on":     {on, "", "on"},
		"paused": {func(f *Facts) { on(f); f.FastPath.Paused, f.FastPath.Untracked = later, 5000 }, "", "paused until"},
		"nobody": {func(f *Facts) { f.FastPath = FastPath{} }, "", ""},
		"off": {func(f *Facts) {
			f.FastPath, f.Agent.FastPath = FastPath{Wanted: true}, &FastPathStatus{Why: "IPsec"}
		}, "fastpath-off", "off"},
		"no peers": {func(f *Facts) {
			f.FastPath, f.Agent.FastPath, f.Lease.Snapshot.Peers = FastPath{Wanted: true}, &FastPathStatus{}, nil
		}, "", "off"},
		"not wanted":       {func(f *Facts) { on(f); f.FastPath.Wanted = false }, "fastpath-orphan", ""},
		"no agent":         {func(f *Facts) { on(f); f.FastPath.Deadline = time.Time{} }, "fastpath-orphan", "off"},
		"detached":         {func(f *Facts) { on(f); f.FastPath.Devices = nil }, "", "off"},
		"not tracked":      {func(f *Facts) { on(f); f.FastPath.Untracked = 2000 }, "fastpath-no-hits", "on"},
		"few packets":      {func(f *Facts) { on(f); f.FastPath.Untracked, f.FastPath.Tracked = 999, 0 }, "", "on"},
		"some are fast":    {func(f *Facts) { on(f); f.FastPath.Untracked, f.FastPath.Fast = 5000, 1 }, "", "on"},
		"short lived only": {func(f *Facts) { on(f); f.FastPath.Untracked, f.FastPath.Tracked = 5000, 5000 }, "", "on"},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := pair(t)
			test.alter(&f)
			got := NewStatus(f)
			if ids := strings.Join(got.Findings, " "); ids != test.want || !strings.HasPrefix(got.FastPath, test.state) || test.state == "" && got.FastPath != "" {
				t.Errorf("got %q and %q, want %q and %q", ids, got.FastPath, test.want, test.state)
			}
			var b strings.Builder
			if err := (StatusReport{Nodes: []Status{got}}).WriteText(&b); err != nil || strings.Contains(b.String(), "FAST PATH") != (test.state != "") {
				t.Errorf("%v:\n%s", err, b.String())
			}
		})
	}
}

// TestDriftOfFastPath: each part of it that is gone or altered is a finding, which says whether packets go elsewhere.
func TestDriftOfFastPath(t *testing.T) {
	peer := netstate.Shortcut{Dst: prefix("10.244.2.0/24"), Mode: netstate.NextHop, Dev: "eth0"}
	other := peer
	other.Dev = "eth1"
	pod := netstate.PodPort{Addr: addr("10.244.1.2"), Dev: "veth1"}
	program := netstate.Program{Dev: "cni0", Name: netstate.FromPod}
	replaced := program
	replaced.Extra = "another version"
	for _, test := range []struct {
		change       netstate.Change
		want, object string
	}{
		{netstate.Change{Want: peer}, "fastpath-missing", "peer n2"},
		{netstate.Change{Want: peer, Was: other}, "fastpath-altered", "peer n2"},
		{netstate.Change{Was: peer}, "leftover-entries", "10.244.2.0/24"},
		{netstate.Change{Want: pod}, "fastpath-missing", "10.244.1.2"},
		{netstate.Change{Was: pod}, "leftover-entries", "10.244.1.2"},
		{netstate.Change{Want: program}, "fastpath-missing", "cni0"},
		{netstate.Change{Want: program, Was: replaced}, "fastpath-altered", "cni0"},
		{netstate.Change{Want: netstate.Switch{SkipMark: 1}, Was: netstate.Switch{}}, "fastpath-altered", "the fast path's settings"},
	} {
		f, _ := pair(t)
		f.Plan = netstate.Plan{test.change}
		got := Check(f)
		if !slices.ContainsFunc(got, func(g Finding) bool { return g.ID == test.want && g.Object == test.object }) || len(got) != 1 {
			t.Errorf("%v: got %+v, want %s of %s", test.change, got, test.want, test.object)
		}
	}
}

// TestAlteredFastPathComesFirst: a packet that took an altered fast path is seen last where nobody can tell why, so that what
// the tables say counts more. The command that is offered has packets take the kernel's path; once they do, it is no longer
// urgent.
func TestAlteredFastPathComesFirst(t *testing.T) {
	peer := netstate.Shortcut{Dst: prefix("10.244.2.0/24"), Mode: netstate.NextHop, Dev: "eth0"}
	other := peer
	other.Dev = "eth1"
	lost := Lost{Followed: []locate.Loss{{Flow: flowOf("10.244.1.2", "10.244.2.2", "tcp", 80), Host: "n1", Exact: true, Likely: true,
		By: locate.Object{Kind: locate.Rule, Text: "route to 10.244.2.2 is missing"}}}}
	for dir, want := range map[string]string{"": "twillctl fastpath pause 10m", "/lab/bpf": "twillctl fastpath pause 10m --bpffs=/lab/bpf"} {
		f, _ := pair(t)
		f.Plan = netstate.Plan{{Want: peer, Was: other}}
		f.FastPath = FastPath{Wanted: true, Compared: true, Devices: []string{"cni0"}, Deadline: time.Now().Add(time.Minute), Dir: dir}
		s := NewSurvey([]Diagnosis{{Findings: Check(f)}}, nil, Probes{Sent: 8, Lost: 2}, lost)
		if s.First == nil || s.First.ID != "fastpath-altered" || s.First.Command != want {
			t.Errorf("first is %+v, want fastpath-altered with the command %q", s.First, want)
		}
		f.FastPath.Paused = time.Now().Add(time.Minute)
		s = NewSurvey([]Diagnosis{{Findings: Check(f)}}, nil, Probes{Sent: 8, Lost: 2}, lost)
		if s.First == nil || s.First.ID != "packet-lost" {
			t.Errorf("while it is paused first is %+v, want packet-lost", s.First)
		}
	}
}

// TestUnpinnedFastPath: the agent has a fast path that no other process can look at.
func TestUnpinnedFastPath(t *testing.T) {
	f, _ := pair(t)
	f.Agent.FastPath, f.FastPath = &FastPathStatus{On: true}, FastPath{Wanted: true, Unpinned: true}
	if got := Check(f); len(got) != 1 || got[0].ID != "fastpath-missing" || !strings.Contains(got[0].Actual, "pins") {
		t.Errorf("got %+v", got)
	}
}
