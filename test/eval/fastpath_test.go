package eval

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fastpath"
)

// sped is a lab with a fast path, and a program that asks about it.
type sped struct {
	*lab.Lab
	node    *lab.Node
	program string
}

// TestFastPath: on a node with a fast path the doctor has nothing to say, sees what is altered of it, and does not take it
// for the cause of lost packets.
func TestFastPath(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			s := newSped(t, backend)
			s.await(t, "healthy", "on", "")
			s.drift(t)
			s.blame(t)
			s.foreign(t)
		})
	}
}

func newSped(t *testing.T, backend string) *sped {
	l := labtest.StartDefault(t, lab.Spec{Name: "sped" + backend[:1], Nodes: 2, Pods: 1, Family: lab.Dual, Backend: backend, Store: lab.File, FastPath: true})
	_, err := l.Converge(t.Context(), testwait.Limit)
	check(t, err)
	program := filepath.Join(labtest.BinDir(t), "twillctl")
	return &sped{l, l.Nodes()[0], program}
}

// await returns when the node has the state of the fast path, and the finding is the first that there is: empty, if there is
// none.
func (s *sped) await(t *testing.T, what, state, finding string) doctor.Facts {
	t.Helper()
	var f doctor.Facts
	testwait.Nil(t, what, func() error {
		f = lookAt(t, s.Lab, s.node, doctor.PeerProbes)
		got, first := doctor.NewStatus(f), ""
		if len(got.Findings) > 0 {
			first = got.Findings[0]
		}
		if got.FastPath != state || first != finding {
			return fmt.Errorf("the fast path is %q with %v, want %q with %q first; unread: %v, plan:\n%v", got.FastPath, got.Findings,
				state, finding, f.Unread, f.Plan)
		}
		return nil
	})
	return f
}

func (s *sped) run(t *testing.T, command string) {
	t.Helper()
	if out, err := s.node.Exec(t.Context(), "sh", "-ec", command); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// foreign: the agent gives the fast path up beside a filter of somebody else, and the doctor says why.
func (s *sped) foreign(t *testing.T) {
	s.run(t, "tc qdisc add dev cni0 clsact 2>/dev/null || true; tc filter add dev cni0 egress pref 9 protocol ip u32 match u32 0 0 flowid 1:1")
	f := s.await(t, "a filter of somebody else", "off", "fastpath-off")
	if got := doctor.Check(f)[0]; !strings.Contains(got.Actual, "u32") {
		t.Errorf("got %+v", got)
	}
}

// drift: without an agent, what is altered of the fast path is found.
func (s *sped) drift(t *testing.T) {
	check(t, s.node.StopAgent(t.Context()))
	f := s.await(t, "no agent", "on", "agent-down")
	if len(f.Plan) > 0 {
		t.Errorf("nothing is altered, and the plan is\n%v", f.Plan)
	}
	var shortcut netstate.Shortcut
	for _, o := range f.Want.Sorted() {
		if c, ok := o.(netstate.Shortcut); ok && c.Dst.Addr().Is4() {
			shortcut = c
		}
	}
	altered := shortcut
	altered.MTU -= 100
	s.apply(t, netstate.Change{Was: shortcut, Want: altered})
	s.await(t, "another MTU", "on", "fastpath-altered")
	s.apply(t, netstate.Change{Was: altered})
	s.await(t, "no shortcut", "on", "fastpath-missing")
	s.apply(t, netstate.Change{Want: shortcut})
	s.await(t, "mended", "on", "agent-down")
	s.mislead(t, shortcut)
	s.run(t, "rm "+s.BPFDir()+"/twill/*/links/from_pod-cni0 || tc filter del dev cni0 ingress") // Linux 6.6, or older
	s.await(t, "no program at cni0", "on", "fastpath-missing")
	s.run(t, "sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=0")
	f = s.await(t, "conntrack", "on", "sysctl")
	if got := doctor.Check(f); !slices.ContainsFunc(got, func(g doctor.Finding) bool { return strings.HasSuffix(g.Object, "be_liberal") }) {
		t.Errorf("got %+v", got)
	}
	check(t, s.node.StartAgent(t.Context()))
	s.await(t, "an agent", "on", "")
}

// mislead: packets are lost where an altered shortcut leads, which is the first finding, and the command that it offers mends
// the loss.
func (s *sped) mislead(t *testing.T, shortcut netstate.Shortcut) {
	t.Helper()
	elsewhere := shortcut
	for range 100 {
		elsewhere.Outer = elsewhere.Outer.Next()
	}
	s.apply(t, netstate.Change{Was: shortcut, Want: elsewhere})
	got := s.probe(t)
	if got.First == nil || got.First.ID != "fastpath-altered" || got.Probes.Lost == 0 {
		t.Fatalf("got %+v first, with %+v", got.First, got.Probes)
	}
	program, args, _ := strings.Cut(got.First.Command, " ")
	if program != "twillctl" {
		t.Fatalf("the command is %q", got.First.Command)
	}
	s.run(t, s.program+" "+args)
	if got = s.probe(t); got.Probes.Lost > 0 {
		t.Errorf("after %q %+v are lost, first %+v", args, got.Probes, got.First)
	}
	s.run(t, s.program+" fastpath resume --bpffs="+s.BPFDir())
	s.apply(t, netstate.Change{Was: elsewhere, Want: shortcut})
	s.await(t, "led right again", "on", "agent-down")
}

// probe sends probes between the lab's pods.
func (s *sped) probe(t *testing.T) (got doctor.Survey) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.program, "doctor", "--lab", s.Name(), "--probe", "-o", "json")
	cmd.Env = append(os.Environ(), "TWILL_BIN_DIR="+filepath.Dir(s.Spec().Programs.Agent))
	out, _ := cmd.Output() // exits 1 with findings
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return got
}

// apply writes to the fast path as an agent does.
func (s *sped) apply(t *testing.T, c netstate.Change) {
	t.Helper()
	check(t, s.node.Do(func() error {
		p, err := fastpath.OpenPinned(s.BPFDir())
		if err != nil {
			return err
		}
		defer p.Close()
		return p.Apply(c)
	}))
}

// blame: lost packets are blamed on what loses them.
func (s *sped) blame(t *testing.T) {
	for do, undo := range map[string][2]string{
		"nft 'add table inet site; add chain inet site c { type filter hook forward priority -150; }; add rule inet site c meta length > 1000 drop'": {
			"nft delete table inet site", "rule inet site c handle 2: meta length > 1000 drop"},
	} {
		s.run(t, do)
		cmd := exec.CommandContext(t.Context(), s.program, "doctor", "--lab", s.Name(), "--probe", "-o", "json")
		cmd.Env = append(os.Environ(), "TWILL_BIN_DIR="+filepath.Dir(s.Spec().Programs.Agent))
		out, _ := cmd.Output() // exits 1 with findings
		var got doctor.Survey
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		s.run(t, undo[0])
		if got.First == nil || got.First.Place != "node1" || !strings.Contains(got.First.Object, undo[1]) || strings.Contains(string(out), "twill-") ||
			strings.Contains(string(out), "clsact ffff") || strings.Contains(string(out), "tcx ingress") {
			t.Errorf("%s: got %+v first; all:\n%s", do, got.First, out)
		}
	}
	s.await(t, "after all", "on", "")
}
