package main

import (
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fastpath"
)

func TestFastPathStatus(t *testing.T) {
	soon := time.Now().Add(time.Minute)
	counts := fastpath.Counts{Results: []fastpath.Count{
		{Program: netstate.FromPod, Result: "encap", Fast: true, Packets: 30, Bytes: 3000},
		{Program: netstate.FromPod, Result: "flags", Packets: 10, Bytes: 600},
		{Program: netstate.FromPod, Result: "nat"},
		{Program: netstate.ToPod, Result: "no-pod", Packets: 1000, Bytes: 90000},
	}}
	attached := []string{"program from_pod dev cni0 ingress"}
	for name, test := range map[string]struct {
		node fastPath
		want string
	}{
		"none":     {fastPath{Off: "no BPF file system"}, "fast path: off: no BPF file system\n"},
		"detached": {fastPath{Deadline: soon}, "fast path: off: no program is attached\n"},
		"dead":     {fastPath{Programs: attached}, "fast path: off: no agent has extended it for ten minutes\n  " + attached[0] + "\n"},
		"paused": {fastPath{Programs: attached, Deadline: soon, Paused: soon},
			"fast path: paused until " + soon.Format(time.TimeOnly) + "\n  " + attached[0] + "\n"},
		"idle": {fastPath{Programs: attached, Deadline: soon}, "fast path: on, no packets of pods of two nodes yet\n  " + attached[0] + "\n"},
		"on": {fastPath{Node: "node1", Programs: attached, Deadline: soon, Counts: counts},
			"node1: fast path: on, 75 % of 40 packets between pods of two nodes took it\n  " + attached[0] + "\n" +
				"  from_pod  fast    encap   30 packets    3000 bytes\n" +
				"  from_pod  kernel  flags   10 packets    600 bytes\n" +
				"  to_pod    kernel  no-pod  1000 packets  90000 bytes\n"},
	} {
		var b strings.Builder
		r := fastPathReport{Nodes: []fastPath{test.node}}
		if err := r.WriteText(&b); err != nil || b.String() != test.want || r.Failed() {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, b.String(), test.want)
		}
	}
	if r := (fastPathReport{Silent: []string{"node3: away"}}); !r.Failed() {
		t.Error("a node that could not be asked is no failure")
	}
}

func TestFastPathBadInput(t *testing.T) {
	for args, want := range map[string]string{
		"pause 10":                            `pause "10": want a time of up to 24h0m0s, as 10m`,
		"pause -1m":                           "unknown shorthand flag",
		"pause 25h":                           `pause "25h": want a time of up to 24h0m0s, as 10m`,
		"pause 1m node1":                      `node "node1": only a node of a lab can be named, with --lab`,
		"status --bpffs " + t.TempDir():       "",
		"resume --bpffs " + t.TempDir():       "the fast path is not available",
		"status --output yaml --bpffs " + "/": `--output "yaml": want text or json`,
	} {
		c := fastPathCommand()
		c.SetArgs(strings.Fields(args))
		c.SilenceErrors, c.SilenceUsage = true, true
		var out strings.Builder
		c.SetOut(&out)
		err := c.ExecuteContext(t.Context())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
		if err == nil && !strings.HasPrefix(out.String(), "fast path: off: ") {
			t.Errorf("%s printed %q", args, out.String())
		}
	}
}
