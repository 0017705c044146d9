package target

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor"
)

// fake is a node that answers with its name, or not at all. It waits until a number of nodes are asked.
type fake struct {
	Node
	name string
	err  error
	met  *sync.WaitGroup
}

func (n fake) Status(context.Context) (doctor.StatusReport, error) {
	n.met.Done()
	n.met.Wait()
	return doctor.StatusReport{Nodes: []doctor.Status{{Node: n.name}}}, n.err
}

func (n fake) History(context.Context, time.Duration) (doctor.HistoryReport, error) {
	return doctor.HistoryReport{Nodes: []doctor.NodeHistory{{Node: n.name}}}, n.err
}

func (n fake) FastPath(context.Context) (FastPathReport, error) {
	return FastPathReport{Nodes: []FastPath{{Node: n.name}}}, n.err
}

func (n fake) PauseFastPath(context.Context, time.Duration) ([]Said, error) {
	if n.err != nil {
		return nil, n.err
	}
	return []Said{{Node: n.name, Text: "yes"}}, nil
}

// fakes are nodes of which b does not answer.
func fakes(names ...string) fan {
	met := &sync.WaitGroup{}
	met.Add(len(names))
	return fan{nodes: func(context.Context) ([]string, func(string) Node, error) {
		return names, func(name string) Node {
			if name == "b" {
				return fake{name: name, err: errors.New("b is away"), met: met}
			}
			return fake{name: name, met: met}
		}, nil
	}}
}

// TestFan: all nodes are asked at the same time, and the answers have their order. A node that does not answer is named
// and keeps no other from it.
func TestFan(t *testing.T) {
	f := fakes("c", "b", "a")
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	silent := []string{"b: b is away"}
	status, err := f.Status(ctx)
	if err != nil || len(status.Nodes) != 2 || status.Nodes[0].Node != "c" || status.Nodes[1].Node != "a" || !reflect.DeepEqual(status.Silent, silent) {
		t.Errorf("status: %+v, %v", status, err)
	}
	history, err := f.History(ctx, time.Hour)
	if err != nil || len(history.Nodes) != 2 || history.Nodes[1].Node != "a" || !reflect.DeepEqual(history.Silent, silent) {
		t.Errorf("history: %+v, %v", history, err)
	}
	fast, err := f.FastPath(ctx)
	if err != nil || len(fast.Nodes) != 2 || fast.Nodes[1].Node != "a" || !reflect.DeepEqual(fast.Silent, silent) {
		t.Errorf("fast path: %+v, %v", fast, err)
	}
	said, err := f.PauseFastPath(ctx, time.Minute)
	if err != nil || len(said) != 3 || said[0].Text != "yes" || said[1].Node != "b" || said[1].Err == nil || said[2].Node != "a" {
		t.Errorf("pause: %+v, %v", said, err)
	}
	if names, err := f.Names(ctx); err != nil || !reflect.DeepEqual(names, []string{"c", "b", "a"}) {
		t.Errorf("names: %v, %v", names, err)
	}
}

// TestFanEnds: somebody who ends a command is not told that nodes are silent, and that nodes cannot be found is an error.
func TestFanEnds(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := fakes("a").History(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
	away := errors.New("no such lab")
	f := fan{nodes: func(context.Context) ([]string, func(string) Node, error) { return nil, nil, away }}
	if _, err := f.Status(t.Context()); !errors.Is(err, away) {
		t.Errorf("not found: %v", err)
	}
}

// TestFlags: the flags alone say what is looked at.
func TestFlags(t *testing.T) {
	const want = `node "n1": only a node of a lab can be named, with --lab`
	if _, err := (&Flags{}).Target("n1"); err == nil || err.Error() != want {
		t.Errorf("a node of this machine: %v, want %s", err, want)
	}
	if _, err := (&Flags{lab: "nosuchlab"}).Target("node1"); err == nil {
		t.Error("a node of a lab that is not there is found")
	}
	leases := &Flags{remote: true}
	leases.files.LeaseFile = "leases.json"
	for kind, f := range map[string]*Flags{"node": leases, "cluster": {remote: true}, "lab": {lab: "nosuchlab", remote: true}} {
		to, err := f.Target()
		if err != nil {
			t.Fatal(err)
		}
		if got := to.View().Kind; got != kind {
			t.Errorf("%+v: a %s, want a %s", f, got, kind)
		}
		if _, one := to.(Node); one != (kind == "node") {
			t.Errorf("a %s: one node is %v", kind, one)
		}
		if _, many := to.(Network); many != (kind != "node") {
			t.Errorf("a %s: several nodes are %v", kind, many)
		}
	}
}
