// Package ui serves one page, on loopback, that shows a cluster's network: the map, what is wrong, a packet's way, the
// last hour, and in a lab faults and scripts to learn from. Documentation/ui.md describes the JSON that the page reads.
package ui

import (
	"context"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab/walk"
)

// Schema is the version of the JSON. A member that is added does not change it.
const Schema = 1

// Source is what the page shows: a lab, a cluster, or one node. Its methods may be called at the same time.
type Source interface {
	// View says what there is to see.
	View() View
	// Status returns the state of all nodes. A node that cannot be asked is part of it.
	Status(ctx context.Context) (doctor.StatusReport, error)
	// Places returns where the nodes are, and what packets can be followed between.
	Places(ctx context.Context) (Places, error)
	// Doctor diagnoses all nodes; with probe it sends packets, too.
	Doctor(ctx context.Context, probe bool) (doctor.Survey, error)
	// Trace follows a packet through the tables; live watches real packets, too. The ends are IDs of Places.
	Trace(ctx context.Context, from, to string, live bool) (doctor.Trace, error)
	// History returns what the nodes' agents remember.
	History(ctx context.Context, since time.Duration) (doctor.HistoryReport, error)
}

// Walker is a Source that captures a packet on every device: a lab.
type Walker interface {
	// Walk pings once, with IPv6 addresses if that is asked for.
	Walk(ctx context.Context, from, to string, ipv6 bool) (walk.Path, error)
}

// View says what a source is, and what it can do.
type View struct {
	Schema  int    `json:"schema"`
	Kind    string `json:"kind"` // lab, cluster, node or report
	Name    string `json:"name"`
	Version string `json:"version"` // of twillctl
	Can     Can    `json:"can"`
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

// Saved is a page in a file: what there was to see at one time.
type Saved struct {
	At      time.Time             `json:"at"`
	View    View                  `json:"view"`
	Update  Update                `json:"update"`
	Survey  *doctor.Survey        `json:"survey,omitempty"`
	History *doctor.HistoryReport `json:"history,omitempty"`
	Trace   *doctor.Trace         `json:"trace,omitempty"`
	Walk    *walk.Path            `json:"walk,omitempty"`
}
