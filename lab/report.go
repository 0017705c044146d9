package lab

import (
	"context"
	"net/netip"
	"path/filepath"
	"time"
)

// Report is what a lab looks like. Text and JSON are renderings of it.
type Report struct {
	Name     string       `json:"name"`
	Dir      string       `json:"dir"`
	Underlay string       `json:"underlay"`
	Family   string       `json:"family"`
	Backend  string       `json:"backend"`
	Store    string       `json:"store"`
	Nodes    []NodeReport `json:"nodes"`
	Pings    []Ping       `json:"pings,omitempty"` // empty: nobody pinged
	Findings []string     `json:"findings"`        // what is not as it should be, a sentence each
}

// Failed reports whether something is not as it should be.
func (r Report) Failed() bool { return len(r.Findings) > 0 }

// NodeReport is one node of a Report.
type NodeReport struct {
	Name     string         `json:"name"`
	Underlay []netip.Addr   `json:"underlay"`
	Subnets  []netip.Prefix `json:"subnets"`
	MTU      int            `json:"mtu"`
	Agent    string         `json:"agent"` // the binary's name
	PID      int            `json:"pid"`
	State    string         `json:"state"` // ready, running or ended
	Pods     []PodReport    `json:"pods"`
}

// PodReport is one pod of a Report.
type PodReport struct {
	Name  string       `json:"name"`
	Addrs []netip.Addr `json:"addrs"`
}

// Status looks at the nodes without pinging.
func (l *Lab) Status(ctx context.Context) Report {
	spec := l.spec
	r := Report{
		Name:     spec.Name,
		Dir:      l.dir,
		Underlay: spec.Underlay,
		Family:   spec.Family,
		Backend:  spec.backend(),
		Store:    spec.Store,
		Findings: []string{},
	}
	for _, n := range l.Nodes() {
		node := n.report(ctx)
		if node.State != "ready" {
			r.Findings = append(r.Findings, n.Name+": the agent is not ready, it is "+node.State+": see "+n.Log())
		}
		r.Nodes = append(r.Nodes, node)
	}
	return r
}

// Report is Status and the ping matrix; it waits up to limit for all pings to be answered.
func (l *Lab) Report(ctx context.Context, limit time.Duration) (Report, error) {
	r := l.Status(ctx)
	pings, err := l.Converge(ctx, limit)
	for _, p := range pings {
		if !p.OK() {
			r.Findings = append(r.Findings, p.From+" → "+p.To+" ("+p.Addr.String()+"): "+p.Error)
		}
	}
	r.Pings = pings
	return r, err
}

// backend says the backend with its options, as far as they are the lab's own.
func (s Spec) backend() string {
	switch {
	case len(s.NetConf) > 0:
		return "as in net-conf.json"
	case s.DirectRouting:
		return s.Backend + " (DirectRouting)"
	}
	return s.Backend
}

func (n *Node) report(ctx context.Context) NodeReport {
	env, _ := n.Env() // without a lease the subnets are empty
	r := NodeReport{Name: n.Name, Underlay: n.Underlay(), Subnets: n.Subnets(), MTU: env.MTU,
		Agent: filepath.Base(n.agentPath()), PID: n.Agent().PID, State: n.agentState(ctx)}
	for _, p := range n.Pods() {
		r.Pods = append(r.Pods, PodReport{Name: p.Name, Addrs: p.Addrs})
	}
	return r
}

func (n *Node) agentState(ctx context.Context) string {
	switch {
	case !n.AgentRunning():
		return "ended"
	case n.ready(ctx) == nil:
		return "ready"
	}
	return "running"
}
