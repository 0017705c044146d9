// Package doctor names the cause of a broken node network. It is a pure function from Facts, what was seen on one
// machine, to Findings, each with evidence, the reason why it hurts and the command that mends it; doctor/facts
// gathers the Facts.
package doctor

import (
	"net/netip"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Facts are what was seen on one node at one moment. What could not be read is in Unread, and no check guesses it.
type Facts struct {
	Node     string
	Agent    Agent
	Lease    Lease
	Underlay backend.Node
	// UnderlayError says why no underlay could be chosen; Want and Plan are empty then.
	UnderlayError string
	Want          netstate.State `json:"-"`
	Have          netstate.State `json:"-"`
	Plan          netstate.Plan  `json:"-"`
	Skips         []subnet.Skip
	PodMTU        int // bytes, what a pod may send
	Env           EnvFile
	Bridge        string
	Interfaces    []netstate.Interface
	Ports         []Port
	Pods          []Pod
	Routes        []Route // of other owners, into the networks of pods
	Rules         []string
	Ways          []Way
	Sysctls       map[string]string
	Chains        []Chain
	CNI           CNI
	IPAM          IPAM
	Programs      []Program
	PortOwner     string   // of the VXLAN's UDP port, if that is a process and not the kernel
	Release       string   // of the kernel: 6.1.0-18-amd64
	NoModules     []string // parts of the kernel that the backend needs and that this one cannot have, with the reason
	Probes        []Probe
	API           API
	Unread        []string // what could not be read, and why
}

// Agent is the running twilld of this node.
type Agent struct {
	Running  bool
	PID      int
	Args     []string
	NotReady string // what /readyz says, empty if it is ready or was not asked
	Deaf     bool   // it runs and does not answer
	Version  string
	Runner   *Runner            // of a backend's own part, nil if there is none or the agent does not say
	Metrics  map[string]float64 // its counters, summed over labels; nil if they are not served
}

// Runner is how a backend's own part is doing, which is no kernel state: as the agent's /status has it.
type Runner struct {
	Running bool      `json:"running"`
	Since   time.Time `json:"since"`           // when that began; zero: it never ran
	Error   string    `json:"error,omitempty"` // why it does not run
	Says    string    `json:"says,omitempty"`  // what it said last
}

// Lease is the agent's checkpoint: the newest leases that it knew.
type Lease struct {
	Path     string
	Error    string
	Missing  bool
	Network  subnet.Config
	Snapshot subnet.Snapshot
}

// EnvFile is subnet.env.
type EnvFile struct {
	Path    string
	Error   string
	Missing bool
	Boot    string // of the machine now
	Env     subnet.Env
}

// Port is a device and what it is plugged into.
type Port struct {
	Name, Master string
	Up           bool
	Pod          bool // the other end is in a pod's namespace
}

// Pod is an address in a namespace behind a port of this node.
type Pod struct {
	Addr netip.Addr
	Port string
}

// Route is a route that is not ours.
type Route struct {
	Dst netip.Prefix
	Via netip.Addr
	Dev string
}

func (r Route) String() string {
	text := r.Dst.String()
	if r.Via.IsValid() {
		text += " via " + r.Via.String()
	}
	return text + " dev " + r.Dev
}

// Way is what the kernel answers for one peer and address family.
type Way struct {
	Node      string
	Subnet    netip.Prefix
	Pod       netip.Addr // an address of the peer's subnet
	Hop       Hop        // towards Pod
	Underlay  netip.Addr
	Outer     Hop    // towards Underlay
	Neighbour string // of the underlay's next hop: "permanent 0e:…", "failed", empty if there is none
}

// Hop is the answer of one route lookup.
type Hop struct {
	Dev   string
	Via   netip.Addr
	Error string // why there is none
}

func (h Hop) String() string {
	switch {
	case h.Error != "":
		return h.Error
	case h.Via.IsValid():
		return "via " + h.Via.String() + " dev " + h.Dev
	}
	return "dev " + h.Dev
}

// CNI is what the container runtime finds.
type CNI struct {
	Dir      string // empty: not looked for
	BinDir   string
	Files    []ConfFile // in the order in which runtimes read them
	Ours     string     // the file that should be used
	Binaries map[string]bool
}

// ConfFile is one file of the runtime's config directory.
type ConfFile struct {
	Name       string
	Error      string
	Plugins    []string
	SubnetFile string
}

// IPAM is the reservations of pods' addresses.
type IPAM struct {
	Dir      string
	Reserved int
	Capacity int // 0: not known
	Leaked   []string
}

// Program is another process that has to do with the network.
type Program struct {
	PID  int
	Name string
	Args []string
}

// Probe is one packet that was sent to find out.
type Probe struct {
	Node string
	Kind string // underlay, overlay, large, tcp
	To   netip.Addr
	Size int // bytes of the IP packet
	OK   bool
	// Sent and Seen are packets of this probe that left, and that came back, at the underlay's device: they tell a
	// filter here from one on the way. They are -1 where nobody watched.
	Sent, Seen int
	Error      string
}

// API is what the cluster's API answered when it was asked.
type API struct {
	Asked bool
	Error string
}
