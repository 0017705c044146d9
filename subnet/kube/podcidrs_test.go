package kube

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestCheckpoint: what one store knows, the next one knows; what is no checkpoint changes nothing.
func TestCheckpoint(t *testing.T) {
	var before, after Store
	before.podCIDRs.put("a", "10.244.1.0/24")
	before.podCIDRs.rewound("7")
	after.Restore(before.Checkpoint())
	after.Restore(json.RawMessage(`{"Revision":7}`))
	if p := &after.podCIDRs; p.get("a") != "10.244.1.0/24" || p.at() != "7" || p.get("b") != "" {
		t.Errorf("the next store knows %v of revision %q", p.byUID, p.revision)
	}
}

// TestRevisions: a revision that goes back makes all forgotten, and one that is unknown says nothing.
func TestRevisions(t *testing.T) {
	var p podCIDRs
	if p.rewound("9") || p.at() != "9" {
		t.Errorf("the first revision is an earlier one, or is %q", p.at())
	}
	p.put("a", "10.244.1.0/24")
	p.put("b", "10.244.2.0/24")
	p.remove("b")
	for _, step := range []struct {
		now  string
		back bool
		at   string
	}{{"9", false, "9"}, {"10", false, "10"}, {"9", true, "9"}, {"11", false, "11"}, {"", false, ""}, {"5", false, "5"}} {
		if p.get("a") == "" || p.get("b") != "" {
			t.Errorf("at %q known is %v", step.now, p.byUID)
		}
		if back := p.rewound(step.now); back != step.back || p.at() != step.at || p.empty() != back {
			t.Errorf("at %q: back %t, at %q, nothing known %t; want %t, %q", step.now, back, p.at(), p.empty(), step.back, step.at)
		}
		p.put("a", "10.244.1.0/24")
	}
	for _, step := range [][2]string{{"4", "5"}, {"100", "100"}, {"20", "100"}, {"", "100"}} {
		if p.advance(step[0]); p.at() != step[1] {
			t.Errorf("advanced by %q to %q, want %q", step[0], p.at(), step[1])
		}
	}
}

// TestRetain: only what is asked for is kept, and nothing is made up.
func TestRetain(t *testing.T) {
	p := podCIDRs{byUID: map[types.UID]string{"a": "10.244.1.0/24", "b": "10.244.2.0/24"}}
	p.retain([]record{{uid: "b"}, {uid: "c"}})
	if len(p.byUID) != 1 || p.get("b") != "10.244.2.0/24" {
		t.Errorf("kept are %v, want b's alone", p.byUID)
	}
}
