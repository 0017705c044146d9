package day2

import (
	"testing"

	"github.com/twill-net/twill/lab/script"
)

// TestTable: a row has the commands since the last one, what was lost, and what was lost before, if that is known.
func TestTable(t *testing.T) {
	rows := &table{}
	f := rows.of("nodes")
	for _, step := range []struct{ command, output string }{
		{"up -nodes 3", ""},
		{"traffic", ""},
		{"join", "node4\n"},
		{"losses 0 # 80cbeba: 1 of 9; 5 ms", "2 of 12 pings lost; of one pod to another: 1, 5 ms; TCP silent: 40 ms\n"},
		{"leave node4", ""},
		{"losses 0 node1/pod1 node2/pod1", "0 of 12 pings lost; of one pod to another: 0, 0 ms; TCP silent: 20 ms\n"},
	} {
		f.After(script.Step{Command: step.command}, step.output, nil)
	}
	const want = `| script | change | pings lost | of one pod to another, longest silence | TCP, longest silence | 80cbeba |
|---|---|---|---|---|---|
| nodes | join | 2 of 12 | 1, 5 ms | 40 ms | 1 of 9; 5 ms |
| nodes | leave node4 | 0 of 12 | 0, 0 ms | 20 ms |  |`
	if got := rows.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
