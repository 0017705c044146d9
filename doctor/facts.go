// Package doctor names the cause of a broken node network. It is a pure function from Facts, what was seen on one
// machine, to Findings, each with the evidence, the reason why it hurts and the command that fixes it. Package
// doctor/facts gathers the Facts.
package doctor

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Facts are what was seen on one node at one moment. What could not be read is in Unread, and no check guesses it.
//
// Checks decide by codes, names and numbers. Fields named Error, Detail or Text are for people, and no check reads
// them.
type Facts struct {
	Node     string
	Agent    Agent
	Lease    Lease
	Underlay backend.Node
	// Left is what the agent made while there was an underlay, if none can be chosen: it leaves that in place.
	Left netstate.State `json:"-"`
	// NoUnderlay has the families for which no underlay could be chosen, and why; Want and Plan are empty then.
	NoUnderlay    map[netstate.Family]string
	Taken         []Taken        // of the underlays' addresses, those that another machine answers for; asked with AllProbes only
	LeftOut       string         // why IPv6 is: the lease here is without it then; empty: it is not
	Want          netstate.State `json:"-"`
	Have          netstate.State `json:"-"`
	Plan          netstate.Plan  `json:"-"` // the agent's, without what it keeps
	Kept          []KeptGateway  // what it keeps
	Skips         []subnet.Skip
	PodMTU        int      // bytes, of the bridge and of new pods
	Ways          []string // the types of the node's backends while one takes another's place, the newest first
	FullMTU       int      // bytes, what PodMTU is once no port of the bridge has less
	Env           EnvFile
	Bridge        string
	Interfaces    []netstate.Interface
	Drops         map[string]uint64 // packets that Twill's own devices have dropped, by device
	Ports         []Port
	Pods          []Pod
	CutOff        []CutOff // pods whose interface is gone, while they are not
	Qdiscs        []Qdisc  // that somebody attached to devices on the path of pods' packets
	Routes        []Route  // of other owners, into the networks of pods
	PodNeighbours []PodNeighbour
	Own           []OwnPath
	Out           []OutPath // to addresses outside of the cluster that were asked about
	PolicyRules   []string  // of policy routing that do not come with the kernel
	Paths         []Path
	ByUnderlay    bool // packets to peers leave through the underlay by whatever route there is: the cloud's router knows the way
	Sysctls       map[string]string
	SizedOutside  bool // only the machine's first network namespace, which this is not, sets the connection table's size
	Chains        []rules.Chain
	ChainsUnread  bool // not all of Chains could be read
	CNI           CNI
	Reservations  Reservations
	Programs      []Program
	// OfFlannel says that the node's agent is flannel's, which is judged by what it should have written.
	OfFlannel  bool
	Policies   Policies
	FastPath   FastPath
	PortOwner  string     // what has the VXLAN's UDP port; empty: nothing, or the kernel
	PortDevice string     // the VXLAN device that it is; empty: it is none
	Release    string     // of the kernel: 6.1.0-18-amd64
	NoModules  []NoModule // that the backend needs
	Probes     []Probe
	API        API
	Unread     []string // what could not be read, and why
}

// WithoutSecrets returns the facts without what others may not see. Of the backend's options numbers, switches and a few words
// stay: texts can be keys.
func (f Facts) WithoutSecrets() Facts {
	var options, kept map[string]any
	if json.Unmarshal(f.Lease.Network.Options, &options) == nil {
		kept = map[string]any{}
	}
	for key, value := range options {
		_, isText := value.(string)
		switch value.(type) {
		case float64, bool:
			kept[key] = value
		}
		if isText && slices.Contains([]string{"type", "mode", "txchecksum"}, strings.ToLower(key)) {
			kept[key] = value
		}
	}
	f.Lease.Network.Raw, f.Lease.Network.Kept, f.Lease.Network.Options = nil, nil, nil
	if data, err := json.Marshal(kept); err == nil && kept != nil {
		f.Lease.Network.Options = data
	}
	return f
}

// KeptGateway is an address of the pods' bridge in a subnet that is not this node's any more, which stays as long as pods
// have it as their gateway.
type KeptGateway struct {
	Addr netstate.Addr
	Pods int      // 0: they could not be counted
	Who  []string // of these pods, those that are known, as namespace/name or by an address
}

// Taken is an address of this node that another machine of the same segment has, too.
type Taken struct {
	Addr netip.Addr
	MAC  netstate.MAC // the other machine's
}

// Agent is the running twilld of this node.
type Agent struct {
	Running      bool
	PID          int    // 0: not known
	Unresponsive bool   // it runs and does not answer
	NotReady     string // the answer to /readyz; empty: it is ready, or was not asked
	Version      string
	Refused      string             // why it does not take the backend of the network config; empty: it does, or did not say
	NameTakenBy  string             // where another machine is that publishes this node's lease; empty: nobody does, or it did not say
	Runner       *Runner            // of the backend; nil: it has none, or the agent did not say
	Policies     *PolicyStatus      // of network policies; nil: it does not enforce them, or did not say
	FastPath     *FastPathStatus    // nil: nobody wants one, or it did not say
	Metrics      map[string]float64 // its counters, summed over labels; nil if they are not served
	Contended    []string           // files that another program keeps changing
	Unreached    []Unreached        // peers and others of which no packet comes back to the agent
	Certificates []Certificate      // by which it and its store know each other
}

// Unreached is a peer that answers the agent's requests in no protocol, or what else the node needs and gets no answer from,
// from the agent's /status.
type Unreached struct {
	Kind  string     `json:"kind,omitempty"` // empty: a node
	Node  string     `json:"node"`
	Addr  netip.Addr `json:"addr"`
	Since time.Time  `json:"since"`
	Error string     `json:"error"`
}

// Runner is the state of a backend's own process, which is no kernel state, from the agent's /status.
type Runner struct {
	Running bool      `json:"running"`
	Since   time.Time `json:"since"`           // when that began; zero: it never ran
	Error   string    `json:"error,omitempty"` // why it does not run
	Detail  string    `json:"says,omitempty"`  // its last message
	// Troubles are what it says is wrong outside the kernel.
	Troubles []Trouble `json:"troubles,omitempty"`
}

// Lease is the agent's checkpoint: the newest leases that it knew.
type Lease struct {
	Path     string
	Error    string
	Missing  bool
	Hidden   bool // it may not be read from here
	Network  subnet.Config
	Guessed  bool // the network's backend has options that are not known
	Snapshot subnet.Snapshot
}

// EnvFile is subnet.env.
type EnvFile struct {
	Path    string
	Error   string
	Missing bool
	Hidden  bool   // it may not be read from here
	Boot    string // of the machine now
	Env     subnet.Env
}

// Port is a device and the bridge that it is attached to.
type Port struct {
	Name, Master string
	Up           bool
	Pod          bool // the other end is in a pod's namespace
	MTU          int
	PodMAC       string // of the other end, as the CNI plugin noted it; empty: it did not
	NoCarrier    bool
	Takes        string // the device below, of which it gets every packet
}

// PodNeighbour is an entry of the neighbour table for a pod of this node that somebody wrote.
type PodNeighbour struct {
	Addr netip.Addr
	MAC  string
}

// Pod is an address in a namespace behind a port of this node.
type Pod struct {
	Addr netip.Addr
	Port string
}

// CutOff is a pod that runs without an interface on this node.
type CutOff struct {
	Namespace, Name string // of Kubernetes; empty: not known
	Sandbox         string // the runtime's ID of it
	Dev             string // the end that it had here
	Addrs           []netip.Addr
}

// Qdisc is a queueing discipline, and what it did with packets while the doctor looked.
type Qdisc struct {
	Dev, Kind, Handle string
	Hook              string // root, ingress, clsact or a parent, as for tc
	Dropped, Passed   uint32
}

// Route is a route that is not Twill's.
type Route struct {
	Type string // as iproute2 names it: blackhole, unreachable, …; empty: it leads to a device, or to several
	Dst  netip.Prefix
	Via  netip.Addr
	Dev  string // empty: none, or several
}

// String returns the route as iproute2 takes it.
func (r Route) String() string {
	text := r.Dst.String()
	if r.Type != "" {
		text = r.Type + " " + text
	}
	if r.Via.IsValid() {
		text += " via " + r.Via.String()
	}
	if r.Dev != "" {
		text += " dev " + r.Dev
	}
	return text
}

// Path is how the kernel would send to one peer in one address family.
type Path struct {
	Node      string
	Subnet    netip.Prefix
	Pod       netip.Addr // an address of the peer's subnet
	Hop       Hop        // towards Pod
	Underlay  netip.Addr
	Outer     Hop       // towards Underlay
	Neighbour Neighbour // the next hop towards Underlay
}

// nextHop returns the address whose neighbour entry Neighbour is.
func (p Path) nextHop() netip.Addr {
	if p.Outer.Via.IsValid() {
		return p.Outer.Via
	}
	return p.Underlay
}

// OwnPath is how the kernel would send to a pod of this node in one address family.
type OwnPath struct {
	Subnet netip.Prefix
	Hop    Hop
}

// OutPath is how the kernel would send to an address outside of the cluster.
type OutPath struct {
	To        netip.Addr
	Hop       Hop
	Neighbour Neighbour // the next hop
}

// NextHop returns the address whose neighbour entry Neighbour is.
func (p OutPath) NextHop() netip.Addr {
	if p.Hop.Via.IsValid() {
		return p.Hop.Via
	}
	return p.To
}

// Hop is the answer of one route lookup.
type Hop struct {
	Dev   string
	Via   netip.Addr
	Error string // why there is none
	// By is what has this host take the packets for its own, and Fix the command that takes it away; empty: it does not.
	By, Fix string
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

// Neighbour is an entry of the kernel's neighbour table; the zero value is none.
type Neighbour struct {
	State netstate.NeighState
	MAC   string
}

func (n Neighbour) String() string {
	if n == (Neighbour{}) {
		return ""
	}
	return n.State.String() + " " + n.MAC
}

// NoModule is a module that this kernel cannot have.
type NoModule struct {
	Name   string
	Detail string // "CONFIG_NET_IPIP is not set"
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
	Hidden     bool // it may not be read from here
	Plugins    []string
	SubnetFile string
	Carries    bool // pods get Twill's network by it, too: it has Twill's plugin in it, as Multus' and some meshes' have
}

// Certificate is one by which an agent and its store know each other.
type Certificate struct {
	Name string
	Left time.Duration // until it ends, negative afterwards
}

// Reservations are the reserved addresses of pods.
type Reservations struct {
	Dir      string
	Reserved int
	Capacity int // 0: not known
	Leaked   []string
}

// Program is another process that concerns the network.
type Program struct {
	PID  int
	Name string
	Args []string // of kube-proxy
}

// Probe is one packet that was sent to find out.
type Probe struct {
	Node string
	Kind ProbeKind
	To   netip.Addr
	Size int // bytes of the IP packet
	OK   bool
	// Connects reports whether the host, which answers no pings, answers a connection.
	Connects bool
	// By is what leads the packet away, or refuses it, and Fix the command that takes that away; empty: nothing is known to.
	By, Fix string
	// Sent and Seen count packets of this probe that left, and that came back, through the underlay's device: they
	// tell a filter on this node from one on the path. They are -1 if nobody counted.
	Sent, Seen int
	Error      string
}

// Probing says which packets a look at a node sends.
type Probing int

// What is sent.
const (
	NoProbes   Probing = iota // nothing
	PeerProbes                // echo requests to the peers, which answer within milliseconds
	AllProbes                 // also what takes longer: TCP, a question for the node's own address, and packets between pods
)

// ProbeKind is what a probe tests.
type ProbeKind string

// The kinds of probes.
const (
	ProbeUnderlay ProbeKind = "underlay" // an echo request to a node
	ProbeOverlay  ProbeKind = "overlay"  // an echo request through the path of pods
	ProbeLarge    ProbeKind = "large"    // the same, as large as a pod may send
	ProbeTCP      ProbeKind = "tcp"      // a connection through the path of pods
)

// API is the answer of the cluster's API to a request with the agent's credentials.
type API struct {
	Problem APIProblem // empty: it answered, or was not asked
	// Grant is what a Forbidden request lacks, "USER the verb VERB on RESOURCE", empty if the answer does not say.
	Grant string
	Error string
	// Stray is a node for whose sake all agents read Nodes although the network config says Lease objects, and Guard the
	// node that asks them to; empty: none.
	Stray, Guard string
}

// APIProblem is a class of errors of the cluster's API.
type APIProblem string

// The classes.
const (
	Unauthorized     APIProblem = "unauthorized"
	Forbidden        APIProblem = "forbidden"
	TooManyRequests  APIProblem = "too-many-requests"
	UnknownAuthority APIProblem = "unknown-authority"
	ExpiredCert      APIProblem = "expired-certificate" // or not yet valid
	Unreachable      APIProblem = "unreachable"
	OtherProblem     APIProblem = "other"
)
