package doctor

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Status is a node's state in short.
type Status struct {
	Node    string `json:"node"`
	Backend string `json:"backend"`
	// Ways are the backends by which peers reach the node while one takes another's place, the newest first.
	Ways    []string `json:"ways,omitempty"`
	Packets string   `json:"packets,omitempty"` // what moves them from node to node: kernel or agent
	// Runner is the state of the backend's own process, if it has one and the agent says.
	Runner *Runner `json:"runner,omitempty"`
	// Policies says who enforces network policies; nil: nobody is to.
	Policies *PolicyState `json:"policies,omitempty"`
	// FastPath is on, off or "paused until" a time; empty: nobody wants one.
	FastPath string   `json:"fastPath,omitempty"`
	Subnets  []string `json:"subnets"`
	Underlay []string `json:"underlay"`
	MTU      int      `json:"mtu"` // of new pods, bytes
	// FullMTU is what MTU will be when SmallerPods pods, which have less, are gone; 0: it is that already.
	FullMTU     int        `json:"fullMTU,omitempty"`
	SmallerPods int        `json:"smallerPods,omitempty"`
	Agent       string     `json:"agent"` // ready, running, deaf or down
	PID         int        `json:"pid"`
	Version     string     `json:"version,omitempty"`   // of the agent
	Applied     *time.Time `json:"lastApply,omitempty"` // when the agent last changed the kernel
	Changes     int        `json:"changes"`             // to the kernel since the agent's start, -1 if it does not say
	Errors      int        `json:"errors"`              // of applying, -1 as for Changes
	OutOf       int        `json:"outOfSync"`           // objects that are not as they should be
	// Drops are packets that Twill's own devices have dropped since they were made, by device.
	Drops map[string]uint64 `json:"drops,omitempty"`
	Peers []PeerStatus      `json:"peers"`
	// Unreached says what else the node needs and gets no answer from: default gateway, API server, cluster's DNS.
	Unreached []string `json:"unreached,omitempty"`
	Findings  []string `json:"findings"` // IDs, the likeliest cause first
}

// PeerStatus is one peer as this node has it.
type PeerStatus struct {
	Node   string `json:"node"`
	InSync bool   `json:"inSync"`
	Reason string `json:"reason,omitempty"` // why it is not
	// Direct reports whether packets to the peer's pods are routed to its underlay address, and not wrapped.
	Direct bool `json:"direct,omitempty"`
	// Unreached says since when no packet of the peer comes back to the agent, and why; empty: they do, or none was asked.
	Unreached string `json:"unreached,omitempty"`
}

// NewStatus returns the status that the facts give.
func NewStatus(f Facts) Status {
	local := f.Lease.Snapshot.Local
	s := Status{Node: f.Node, Backend: local.Backend, Ways: f.Ways, Subnets: []string{}, Underlay: []string{}, MTU: f.PodMTU,
		Runner: f.Agent.Runner, Policies: f.policyState(), FastPath: f.fastPathState(), Agent: f.Agent.state(), PID: f.Agent.PID, Version: f.Agent.Version,
		Changes: -1, Errors: -1, OutOf: len(f.Plan), Drops: f.Drops, Peers: peerStates(f), Findings: []string{}}
	if f.PodMTU < f.FullMTU {
		s.FullMTU, s.SmallerPods = f.FullMTU, f.Underlay.SmallerPorts(f.FullMTU)
	}
	switch {
	case f.movesPackets():
		s.Packets = "agent"
	case len(f.Want) > 0:
		s.Packets = "kernel"
	}
	if m := f.Agent.Metrics; m != nil {
		s.Changes, s.Errors = int(m["twill_changes_total"]), int(m["twill_apply_errors_total"])
		if at := m["twill_last_apply_timestamp_seconds"]; at > 0 {
			when := time.Unix(int64(at), 0).UTC()
			s.Applied = &when
		}
	}
	for _, stack := range local.Stacks {
		s.Subnets, s.Underlay = append(s.Subnets, stack.Subnet.String()), append(s.Underlay, stack.Underlay.String())
	}
	for _, u := range f.Agent.Unreached {
		if u.Kind != "" {
			s.Unreached = append(s.Unreached, u.Kind+": "+u.text())
		}
	}
	for _, finding := range Check(f) {
		s.Findings = append(s.Findings, finding.ID)
	}
	return s
}

func (a Agent) state() string {
	switch {
	case !a.Running:
		return "down"
	case a.Unresponsive:
		return "deaf"
	case a.NotReady != "":
		return "running"
	}
	return "ready"
}

// peerStates returns the peers, each with the first of its objects that is not as it should be.
func peerStates(f Facts) []PeerStatus {
	names := peersByPrefix(f.Lease.Snapshot)
	wrong, direct := map[string]string{}, f.directRoutes()
	for _, s := range f.Skips {
		wrong[s.Node] = s.Detail
	}
	for _, c := range f.Plan {
		name := ""
		switch o := c.Want.(type) {
		case netstate.Route:
			name = names[o.Dst]
		case netstate.Neigh:
			name = names[netstate.Host(o.IP)]
		case netstate.FDB:
			name = names[netstate.Host(o.Dst)]
		}
		if name != "" && wrong[name] == "" {
			wrong[name] = c.String()
		}
	}
	peers := []PeerStatus{}
	for _, p := range f.Lease.Snapshot.Peers {
		isDirect := slices.ContainsFunc(p.Stacks, func(s subnet.Stack) bool { return s.Underlay.IsValid() && direct[s.Subnet] == s.Underlay })
		peers = append(peers, PeerStatus{p.Node, wrong[p.Node] == "", wrong[p.Node], isDirect, f.Agent.unreached(p.Node)})
	}
	for _, s := range f.Lease.Snapshot.Skips { // their records are no leases
		peers = append(peers, PeerStatus{Node: s.Node, Reason: s.Detail})
	}
	return peers
}

// unreached says why no packet of a peer comes back, empty if they do.
func (a Agent) unreached(node string) string {
	i := slices.IndexFunc(a.Unreached, func(u Unreached) bool { return u.Kind == "" && u.Node == node })
	if i < 0 {
		return ""
	}
	return a.Unreached[i].text()
}

func (u Unreached) text() string {
	return fmt.Sprintf("no packet of %s comes back since %s: %s", u.Addr, u.Since.UTC().Format(time.RFC3339), u.Error)
}

// directRoutes returns the wanted routes that lead to other hosts without a tunnel, each with its next hop.
func (f Facts) directRoutes() map[netip.Prefix]netip.Addr {
	all := map[netip.Prefix]netip.Addr{}
	for _, o := range f.Want {
		if r, ok := o.(netstate.Route); ok && !r.Onlink {
			all[r.Dst] = r.Via
		}
	}
	return all
}

// StatusReport is the status of one node, or of all.
type StatusReport struct {
	Schema int      `json:"schema"`
	Nodes  []Status `json:"nodes"`
	// Silent are the nodes of a cluster whose agents could not be asked, each with the reason.
	Silent []string `json:"silent,omitempty"`
}

// Failed reports whether any node has findings or could not be asked.
func (r StatusReport) Failed() bool {
	return len(r.Silent) > 0 || slices.ContainsFunc(r.Nodes, func(n Status) bool { return len(n.Findings) > 0 })
}

// WriteJSON writes the report for programs.
func (r StatusReport) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteText writes the report for people: a line for each node, one for each peer that is out of sync, and one for
// each node that does not answer.
func (r StatusReport) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fast := slices.ContainsFunc(r.Nodes, func(n Status) bool { return n.FastPath != "" })
	fmt.Fprintln(t, "NODE\tBACKEND\tSUBNET\tAT\tMTU\tAGENT\tVERSION\t"+
		"PEERS IN SYNC\tCHANGES\tERRORS\tLAST APPLY\tPOLICIES\t"+fastCell(fast, "FAST PATH")+"FINDINGS")
	var out []string
	for _, n := range r.Nodes {
		in := 0
		if r := n.Runner; r != nil && !r.Running {
			out = append(out, fmt.Sprintf("%s: the backend's own process does not run: %s", n.Node, r.Error))
		}
		if p := n.Policies; p != nil && p.Error != "" {
			out = append(out, fmt.Sprintf("%s: network policies are %s: %s", n.Node, p, p.Error))
		}
		for _, u := range n.Unreached {
			out = append(out, fmt.Sprintf("%s → %s", n.Node, u))
		}
		for _, p := range n.Peers {
			if p.Unreached != "" {
				out = append(out, fmt.Sprintf("%s → %s: %s", n.Node, p.Node, p.Unreached))
			}
			if p.InSync {
				in++
				continue
			}
			out = append(out, fmt.Sprintf("%s → %s: %s", n.Node, p.Node, p.Reason))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d of %d\t%s\t%s\t%s\t%s\t%s%s\n", cmp.Or(n.Node, "?"), n.backend(),
			cmp.Or(strings.Join(n.Subnets, " "), "–"), cmp.Or(strings.Join(n.Underlay, " "), "–"), n.mtu(), n.Agent,
			cmp.Or(n.Version, "?"), in, len(n.Peers), count(n.Changes), count(n.Errors), n.lastApply(), n.Policies,
			fastCell(fast, cmp.Or(n.FastPath, "–")), cmp.Or(strings.Join(n.Findings, " "), "none"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, line := range append(out, r.Silent...) {
		if _, err := fmt.Fprintln(w, "✗", line); err != nil {
			return err
		}
	}
	return nil
}

// backend returns its name, and what moves its packets unless that is the kernel as with most backends.
func (s Status) backend() string {
	if len(s.Ways) > 0 {
		return strings.Join(s.Ways, " beside ")
	}
	if s.Backend != "" && (s.Packets == "agent" || s.Backend == "wireguard" && s.Packets != "") {
		return s.Backend + " (" + s.Packets + ")"
	}
	return cmp.Or(s.Backend, "–")
}

// mtu returns the MTU of new pods, and why it is not what it could be.
func (s Status) mtu() string {
	if s.FullMTU == 0 {
		return fmt.Sprint(s.MTU)
	}
	return fmt.Sprintf("%d (%d without %d pods)", s.MTU, s.FullMTU, s.SmallerPods)
}

// fastCell is a cell of the column about the fast path, which is there only where somebody wants one.
func fastCell(there bool, text string) string {
	if !there {
		return ""
	}
	return text + "\t"
}

// lastApply returns how long ago that was, for people.
func (s Status) lastApply() string {
	if s.Applied == nil {
		return "?"
	}
	return time.Since(*s.Applied).Round(time.Second).String() + " ago"
}

func count(n int) string {
	if n < 0 {
		return "?"
	}
	return fmt.Sprint(n)
}
