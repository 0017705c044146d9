package walk_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/netstate"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// TestWalk follows pings over every kind of path, and compares the entries that decided.
func TestWalk(t *testing.T) {
	for name, test := range map[string]struct {
		spec   lab.Spec
		family netstate.Family
		want   []string
	}{
		"vxlan": {lab.Spec{Backend: "vxlan"}, netstate.IPv4, []string{"route", "neighbour", "bridge", "route", "neighbour", "fdb", "route", "neighbour",
			"bridge", "vxlan", "route", "neighbour", "bridge", "route"}},
		"hostgw": {lab.Spec{Backend: "host-gw"}, netstate.IPv4, []string{"route", "neighbour", "bridge", "route", "neighbour", "bridge", "route", "neighbour",
			"bridge", "route"}},
		"six": {lab.Spec{Backend: "vxlan", Family: lab.IPv6}, netstate.IPv6, []string{"route", "neighbour", "bridge", "route", "neighbour", "fdb", "route",
			"neighbour", "bridge", "vxlan", "route", "neighbour", "bridge", "route"}},
		"nat": {lab.Spec{Backend: "vxlan", Sites: map[string]lab.Site{"node2": {NAT: true}}}, netstate.IPv4, nil},
		"l3":  {lab.Spec{Backend: "vxlan", Underlay: lab.L3}, netstate.IPv4, nil},
	} {
		t.Run(name, func(t *testing.T) {
			test.spec.Name, test.spec.Nodes, test.spec.Pods, test.spec.Store = "walk"+name, 2, 1, lab.File
			l := labtest.Up(t, test.spec)
			p := follow(t, l, "node1/pod1", "node2/pod1", test.family)
			if !p.Arrived || strings.Contains(p.Reply, "no reply") {
				t.Errorf("the packet did not arrive: %s", p.Reply)
			}
			if got := tables(p); test.want != nil && strings.Join(got, " ") != strings.Join(test.want, " ") {
				t.Errorf("decided by %v, want %v", got, test.want)
			}
			wellFormed(t, p)
		})
	}
}

func follow(t *testing.T, l *lab.Lab, from, to string, f netstate.Family) walk.Path {
	t.Helper()
	a, err := l.FindPod(from)
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.FindPod(to)
	if err != nil {
		t.Fatal(err)
	}
	p, err := walk.Walk(t.Context(), l, a, b, f)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := p.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	return p
}

func tables(p walk.Path) (names []string) {
	for _, s := range p.Steps {
		for _, e := range s.Entries {
			names = append(names, e.Table)
		}
	}
	return names
}

func wellFormed(t *testing.T, p walk.Path) {
	t.Helper()
	var svg strings.Builder
	if err := p.WriteSVG(&svg); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(svg.String())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("the picture is not XML: %v", err)
		}
	}
}

// TestWalkOnOneNode, and to a pod behind a node whose entries are gone.
func TestWalkThatEnds(t *testing.T) {
	l := labtest.Up(t, lab.Spec{Name: "walkends", Nodes: 2, Pods: 2, Store: lab.File})
	if p := follow(t, l, "node1/pod1", "node1/pod2", netstate.IPv4); !p.Arrived || strings.Join(tables(p), " ") != "route neighbour bridge route" && len(tables(p)) < 4 {
		t.Errorf("on one node: %v, %v", p.Arrived, tables(p))
	}
	n := l.Nodes()[0]
	if err := n.KillAgent(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Exec(t.Context(), "ip", "route", "replace", "blackhole", l.Nodes()[1].Subnets()[0].String()); err != nil {
		t.Fatal(err)
	}
	p := follow(t, l, "node1/pod1", "node2/pod1", netstate.IPv4)
	last := p.Steps[len(p.Steps)-1]
	if p.Arrived || last.Host != "node1" || last.Dev != "cni0" || !strings.Contains(last.Entries[0].Text, "blackhole") && !strings.Contains(last.Entries[0].Text, "none for") {
		t.Errorf("arrived %v, last %+v", p.Arrived, last)
	}
}
