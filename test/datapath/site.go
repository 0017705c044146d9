package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// labsDir is where the benchmark's labs are: the same in every run, so that a run finds what a crashed one left.
const labsDir = "/run/twill/datapath"

// site is a lab of two nodes with a pod each, whose packets take one of the paths. It has both address families.
type site struct {
	*lab.Lab
	fast bool
}

// siteName names the lab of a backend's path.
func siteName(v variant) string { return "bench" + strings.ReplaceAll(v.backend, "-", "") + v.path() }

// upSite brings the lab of a variant up, whose pods then reach each other and whose hosts have servers of iperf3.
func upSite(ctx context.Context, v variant) (*site, error) {
	if _, err := lab.Down(labsDir, siteName(v)); err != nil {
		return nil, err
	}
	l, err := lab.Up(ctx, lab.Spec{Name: siteName(v), Dir: labsDir, Nodes: 2, Pods: 1, Family: lab.Dual, Backend: v.backend,
		FastPath: v.fast, Store: lab.File}, nil)
	if err != nil {
		return nil, err
	}
	s := &site{l, v.fast}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, l.Down())
	}
	return s, nil
}

func (s *site) prepare(ctx context.Context) error {
	pings, err := s.Converge(ctx, time.Minute)
	if err != nil {
		return err
	}
	for _, p := range pings {
		if !p.OK() {
			return fmt.Errorf("lab %s: %s does not reach %s: %s", s.Name(), p.From, p.To, p.Error)
		}
	}
	server := s.Nodes()[1]
	return errors.Join(startIperf(ctx, s.Lab, server.Host), startIperf(ctx, s.Lab, server.Pods()[0].Host))
}

// pods returns the pods between which is measured.
func (s *site) pods(f netstate.Family) (from, to end) {
	a, b := s.Nodes()[0].Pods()[0], s.Nodes()[1].Pods()[0]
	return end{a.Host, a.Addr(f)}, end{b.Host, b.Addr(f)}
}

// nodes returns their nodes.
func (s *site) nodes(f netstate.Family) (from, to end) {
	at := func(n *lab.Node) end {
		for _, a := range n.Underlay() {
			if netstate.FamilyOf(a) == f {
				return end{n.Host, a}
			}
		}
		return end{Host: n.Host}
	}
	return at(s.Nodes()[0]), at(s.Nodes()[1])
}
