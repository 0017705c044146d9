// Package target is what twillctl looks at: the node that it runs on, the nodes of a lab, or those of a cluster. A command
// asks all of them in one way. Here looks at one network namespace. A lab and a cluster ask their nodes at the same time:
// the nodes of a lab are looked at from within their namespaces, and those of a cluster run the same command through
// kubectl exec and print JSON.
package target

import (
	"context"
	"io"
	"net/netip"
	"time"

	"github.com/twill-net/twill/doctor"
)

// Source is what can be shown, also of the past. Its methods may be called at the same time.
type Source interface {
	// View says what there is to see.
	View() View
	// Status returns the state of all nodes. A node that cannot be asked is part of it.
	Status(ctx context.Context) (doctor.StatusReport, error)
	// Places returns where the nodes are, and what packets can be followed between.
	Places(ctx context.Context) (Places, error)
	// Doctor diagnoses all nodes. With AllProbes pods send to the addresses outside of the cluster, too.
	Doctor(ctx context.Context, probe doctor.Probing, outside ...netip.Addr) (doctor.Survey, error)
	// Trace follows a packet through the tables. The ends are IDs of Places, addresses, nodes or Services.
	Trace(ctx context.Context, src, dst string, how Tracing) (doctor.Trace, error)
	// History returns what the nodes' agents remember.
	History(ctx context.Context, since time.Duration) (doctor.HistoryReport, error)
}

// Target is a Source that is there, and can be worked with.
type Target interface {
	Source
	// Names returns the names of the nodes, as far as they can be chosen.
	Names(ctx context.Context) ([]string, error)
	// Plan returns what the agent of a node would change.
	Plan(ctx context.Context) (Plan, error)
	// Report returns the files of a bug report about a node. log is its agent's; empty: as the target knows.
	Report(ctx context.Context, log string) (Bundle, error)
	// Capture writes a pcapng of the packets between two ends until the context or its time ends. It says how it goes.
	Capture(ctx context.Context, c Capturing, w io.Writer, say func(string)) error
	// Test sends packets from all nodes to their peers and the goals.
	Test(ctx context.Context, g Goals) (doctor.Connectivity, error)
	// FastPath returns how the fast path of all nodes does.
	FastPath(ctx context.Context) (FastPathReport, error)
	// PauseFastPath has the packets of all nodes take the kernel's own path for so long from now; 0 ends a pause.
	PauseFastPath(ctx context.Context, pause time.Duration) ([]Said, error)
}

// Node is a Target that is one node.
type Node interface {
	Target
	// Diagnose is Doctor without the survey.
	Diagnose(ctx context.Context, probe doctor.Probing, outside ...netip.Addr) (doctor.Diagnosis, error)
}

// Network is a Target of several nodes with pods, which can connect to Services.
type Network interface {
	Target
	// Senders returns a pod of each node that has one, by node: of a namespace rather than of another.
	Senders(ctx context.Context, namespace string) (map[string]string, error)
}

// View says what a source is, and what it can do.
type View struct {
	Schema  int    `json:"schema"` // of the page's JSON
	Kind    string `json:"kind"`   // lab, cluster, node or report
	Name    string `json:"name"`
	Version string `json:"version"` // of twillctl
	Can     Can    `json:"can"`

	Titles map[string]string `json:"titles"` // of findings, by ID
}

// Can says which of the page's parts have something to show.
type Can struct {
	Walk    bool `json:"walk"`
	Trace   bool `json:"trace"`
	Doctor  bool `json:"doctor"`
	Probe   bool `json:"probe"`
	History bool `json:"history"`
	Faults  bool `json:"faults"`
	Scripts bool `json:"scripts"`
	Live    bool `json:"live"` // the page is updated
}

// Places are where nodes and pods are.
type Places struct {
	Segments []Segment `json:"segments"` // of the underlay; empty: not known
	Pods     []Pod     `json:"pods"`
	Services []Service `json:"services"`
}

// nowhere are places that are not known.
func nowhere() Places { return Places{Segments: []Segment{}, Pods: []Pod{}, Services: []Service{}} }

// Segment is a part of the underlay within which nodes reach each other without a router.
type Segment struct {
	Name    string   `json:"name"`
	Subnets []string `json:"subnets"`
	Nodes   []string `json:"nodes"`
}

// Pod is one end of packets.
type Pod struct {
	ID    string   `json:"id"` // node1/pod1 in a lab, namespace/name in a cluster
	Node  string   `json:"node"`
	Addrs []string `json:"addrs"`
}

// Service is what packets can be sent to beside pods.
type Service struct {
	ID    string   `json:"id"` // service/namespace/name
	Ports []uint16 `json:"ports"`
}

// Tracing says how a packet is followed.
type Tracing struct {
	Probe   bool          // send packets, too
	Live    bool          // watch real packets, too
	During  time.Duration // how long, with Live
	Objects string        // of a node: a file with Services and EndpointSlices, - for standard input
	Targets bool          // that file has what a workstation found in them
}

// Plan is what the agent of a node would change now.
type Plan struct {
	Text    string
	Changes bool // there are some
}

// Goals are what nodes are to reach besides their peers.
type Goals struct {
	Pods     []string // addresses
	Services []string // NAME=ADDRESS:PORT
	DNS      []string // addresses of the cluster's DNS
	Outside  []string // addresses
}

// Said is what a node answered to an order.
type Said struct {
	Node string // empty: this machine
	Text string
	Err  error // why it does not obey
}
