package target

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
		node FastPath
		want string
	}{
		"none":     {FastPath{Off: "no BPF file system"}, "fast path: off: no BPF file system\n"},
		"detached": {FastPath{Deadline: soon}, "fast path: off: no program is attached\n"},
		"dead":     {FastPath{Programs: attached}, "fast path: off: no agent has extended it for ten minutes\n  " + attached[0] + "\n"},
		"paused": {FastPath{Programs: attached, Deadline: soon, Paused: soon},
			"fast path: paused until " + soon.Format(time.TimeOnly) + "\n  " + attached[0] + "\n"},
		"idle": {FastPath{Programs: attached, Deadline: soon}, "fast path: on, no packets of pods of two nodes yet\n  " + attached[0] + "\n"},
		"on": {FastPath{Node: "node1", Programs: attached, Deadline: soon, Counts: counts},
			"node1: fast path: on, 75 % of 40 packets between pods of two nodes took it\n  " + attached[0] + "\n" +
				"  from_pod  fast    encap   30 packets    3000 bytes\n" +
				"  from_pod  kernel  flags   10 packets    600 bytes\n" +
				"  to_pod    kernel  no-pod  1000 packets  90000 bytes\n"},
	} {
		var b strings.Builder
		r := FastPathReport{Nodes: []FastPath{test.node}}
		if err := r.WriteText(&b); err != nil || b.String() != test.want || r.Failed() {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, b.String(), test.want)
		}
	}
	if r := (FastPathReport{Silent: []string{"node3: away"}}); !r.Failed() {
		t.Error("a node that could not be asked is no failure")
	}
}
