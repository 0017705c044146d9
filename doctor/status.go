package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/twill-net/twill/netstate"
)

// Status is how a node stands. Text and JSON are renderings of it.
type Status struct {
	Node    string `json:"node"`
	Backend string `json:"backend"`
	Packets string `json:"packets,omitempty"` // who moves them from node to node: kernel or agent
	// Runner is how a backend's own part is doing, where it has one and the agent says.
	Runner   *Runner      `json:"runner,omitempty"`
	Subnets  []string     `json:"subnets"`
	Underlay []string     `json:"underlay"`
	MTU      int          `json:"mtu"`
	Agent    string       `json:"agent"` // ready, running, deaf or down
	PID      int          `json:"pid"`
	Version  string       `json:"version,omitempty"`   // of the agent, if it says
	Applied  *time.Time   `json:"lastApply,omitempty"` // when it last changed the kernel
	Changes  int          `json:"changes"`             // to the kernel since the agent's start, -1 if it does not say
	Errors   int          `json:"errors"`              // of applying, -1 as for Changes
	OutOf    int          `json:"outOfSync"`           // objects that are not as they should be
	Peers    []PeerStatus `json:"peers"`
	Findings []string     `json:"findings"` // ids, the likeliest cause first
}

// PeerStatus is one peer as this node has it.
type PeerStatus struct {
	Node   string `json:"node"`
	InSync bool   `json:"inSync"`
	Reason string `json:"reason,omitempty"` // why it is not
}

// NewStatus is the status that the facts give.
func NewStatus(f Facts) Status {
	local := f.Lease.Snapshot.Local
	s := Status{Node: f.Node, Backend: local.Backend, Subnets: []string{}, Underlay: []string{}, MTU: f.PodMTU, Agent: agentState(f.Agent),
		Packets: f.movedBy(), Runner: f.Agent.Runner, PID: f.Agent.PID, Changes: -1, Errors: -1, OutOf: len(f.Plan), Peers: peerStates(f), Findings: []string{}}
	if m := f.Agent.Metrics; m != nil {
		s.Changes, s.Errors = int(m["twill_changes_total"]), int(m["twill_apply_errors_total"])
		s.Version = f.Agent.Version
		if at := m["twill_last_apply_timestamp_seconds"]; at > 0 {
			when := time.Unix(int64(at), 0).UTC()
			s.Applied = &when
		}
	}
	for _, stack := range local.Stacks {
		s.Subnets, s.Underlay = append(s.Subnets, stack.Subnet.String()), append(s.Underlay, stack.Underlay.String())
	}
	for _, finding := range Check(f) {
		s.Findings = append(s.Findings, finding.ID)
	}
	return s
}

// movedBy is who moves packets from node to node: kernel, or agent where the backend's device is a TUN device. Empty: the
// backend could not be asked.
func (f Facts) movedBy() string {
	if len(f.Want) == 0 {
		return ""
	}
	for _, o := range f.Want {
		if _, ok := o.(netstate.Tun); ok {
			return "agent"
		}
	}
	return "kernel"
}

func agentState(a Agent) string {
	switch {
	case !a.Running:
		return "down"
	case a.Deaf:
		return "deaf"
	case a.NotReady != "":
		return "running"
	}
	return "ready"
}

// peerStates are the peers, each with the first of its objects that is not as it should be.
func peerStates(f Facts) []PeerStatus {
	d := drift{Facts: f, peers: peersBySubnet(f.Lease.Snapshot)}
	wrong := map[string]string{}
	for _, s := range f.Skips {
		wrong[s.Node] = s.Detail
	}
	for _, c := range f.Plan {
		name := ""
		switch o := c.Want.(type) {
		case netstate.Route:
			name = d.peers[o.Dst]
		case netstate.Neigh:
			name = d.peers[netstate.Host(o.IP)]
		case netstate.FDB:
			name = d.peers[netstate.Host(o.Dst)]
		}
		if name != "" && wrong[name] == "" {
			wrong[name] = c.String()
		}
	}
	peers := []PeerStatus{}
	for _, p := range f.Lease.Snapshot.Peers {
		peers = append(peers, PeerStatus{p.Node, wrong[p.Node] == "", wrong[p.Node]})
	}
	for _, s := range f.Lease.Snapshot.Skips { // whose records are no leases
		peers = append(peers, PeerStatus{s.Node, false, s.Detail})
	}
	return peers
}

// StatusReport is the status of one node, or of all.
type StatusReport struct {
	Schema int      `json:"schema"`
	Nodes  []Status `json:"nodes"`
	// Silent are the nodes of a cluster whose agents could not be asked, each with the reason.
	Silent []string `json:"silent,omitempty"`
}

// Findings says whether there is any on any node.
func (r StatusReport) Findings() bool {
	if len(r.Silent) > 0 {
		return true
	}
	for _, n := range r.Nodes {
		if len(n.Findings) > 0 {
			return true
		}
	}
	return false
}

// WriteJSON renders the report for programs.
func (r StatusReport) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText renders the report for people: a line for each node, one for each peer that is out of sync, and
// one for each node that does not answer. A backend that may be moved by either says by whom it is.
func (r StatusReport) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tBACKEND\tSUBNET\tAT\tMTU\tAGENT\tVERSION\tPEERS IN SYNC\tCHANGES\tERRORS\tLAST APPLY\tFINDINGS")
	var out []string
	for _, n := range r.Nodes {
		in := 0
		if part := n.Runner; part != nil && !part.Running {
			out = append(out, fmt.Sprintf("%s: the backend's own part does not run: %s", n.Node, part.Error))
		}
		for _, p := range n.Peers {
			if p.InSync {
				in++
				continue
			}
			out = append(out, fmt.Sprintf("%s → %s: %s", n.Node, p.Node, p.Reason))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%d of %d\t%s\t%s\t%s\t%s\n", or(n.Node, "?"), n.backend(), or(strings.Join(n.Subnets, " "), "–"),
			or(strings.Join(n.Underlay, " "), "–"), n.MTU, n.Agent, or(n.Version, "?"), in, len(n.Peers), count(n.Changes), count(n.Errors), n.lastApply(), or(strings.Join(n.Findings, " "), "none"))
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

// backend is its name, for people, and who moves its packets where that is not the kernel as with most, or may be either.
func (s Status) backend() string {
	if s.Backend != "" && (s.Packets == "agent" || s.Backend == "wireguard" && s.Packets != "") {
		return s.Backend + " (" + s.Packets + ")"
	}
	return or(s.Backend, "–")
}

// lastApply is how long ago, for people.
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
