package daemon

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// options is the command line. Names and defaults are flannel's (v0.28) unless the comment says Twill.
type options struct {
	etcdEndpoints, etcdPrefix, etcdKeyfile, etcdCertfile, etcdCAFile, etcdUsername, etcdPassword string

	kubeSubnetMgr                                            bool
	kubeLeaseNamespace                                       string // Twill
	kubeAPIURL, kubeconfig, kubeAnnotationPrefix, netConfigs string
	setNodeNetworkUnavailable                                bool

	leaseFile string // Twill: the store is this file
	nodeName  string // Twill

	iface, ifaceRegex                   list
	ifaceCanReach, publicIP, publicIPv6 string

	subnetFile     string
	checkpointFile string // Twill
	renewMargin    int    // minutes
	bridge         string // Twill

	cniSource, cniTarget, installCNI string // Twill
	pods                             podOptions
	policy                           policyOptions   // Twill
	fastPath                         fastPathOptions // Twill

	ipMasq, randomFullyDisable, blackhole bool
	noMasquerade, clusters                prefixes             // Twill
	masqFile                              string               // Twill
	externalIP                            bool                 // k3s
	forwardRules                          backend.ForwardRules // Twill: first
	keepNodeSource                        string               // Twill

	healthzIP   string
	healthzPort int

	reachPeers int           // Twill
	reachRound time.Duration // Twill
	reachDNS   addresses     // Twill

	dryRun, cleanup, version bool // dryRun, cleanup: Twill
	verbosity                int
	logFormat                string // Twill

	ignored []string // flags that were given but have no meaning here
	program program
}

// list is a flag that can be repeated. A comma is part of the value.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(s string) error {
	*l = append(*l, s)
	return nil
}

// ignoredFlags are flags of flannel and its log library that have no meaning in Twill, and why.
var ignoredFlags = map[string]struct {
	why    string
	isBool bool
}{
	"iptables-resync":  {"rules are watched and repaired at once", false},
	"logtostderr":      {"the log always goes to standard error", true},
	"alsologtostderr":  {"the log always goes to standard error", true},
	"stderrthreshold":  {"use -v", false},
	"log_dir":          {"the log always goes to standard error", false},
	"log_backtrace_at": {"there are no backtraces", false},
	"vmodule":          {"use -v", false},
}

// parseFlags reads the command line, then the environment for flags that the command line does not set.
func parseFlags(args []string, environ func(string) (string, bool), out io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("twilld", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are main's to print, once
	o.register(fs)
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(out)
		fmt.Fprint(out, usage)
		fs.PrintDefaults()
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w (twilld --help lists the flags)", explainFlag(fs, err))
	case fs.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q: twilld takes flags only", fs.Arg(0))
	}
	return o, applyEnv(fs, environ)
}

const usage = `twilld leases a subnet of the cluster's network for this node and keeps the kernel's routes,
VXLAN entries and firewall in the state that all nodes' leases ask for. It takes flannel's flags; each can
also be set in the environment as TWILLD_NAME or FLANNELD_NAME (upper case, _ for -).

`

func (o *options) register(fs *flag.FlagSet) {
	o.registerStore(fs)
	o.registerNetwork(fs)
	o.pods.register(fs)
	o.policy.register(fs)
	o.fastPath.register(fs)
	fs.StringVar(&o.subnetFile, "subnet-file", "/run/flannel/subnet.env",
		"where the CNI plugin finds this node's lease")
	fs.StringVar(&o.checkpointFile, "checkpoint-file", "/var/lib/twill/checkpoint.json",
		"lease and peers, for a start without the store; empty: none")
	fs.StringVar(&o.healthzIP, "healthz-ip", "0.0.0.0", "address of /healthz, /readyz and /metrics")
	fs.IntVar(&o.healthzPort, "healthz-port", 0, "port of /healthz, /readyz and /metrics; 0: not served")
	fs.StringVar(&o.cniSource, "cni-conf-source", "",
		"a conflist to install as --cni-conf-file when the data path works; empty: none")
	fs.StringVar(&o.cniTarget, "cni-conf-file", "/etc/cni/net.d/10-twill.conflist",
		"where the container runtime finds the conflist")
	fs.StringVar(&o.installCNI, "install-cni", "", "copy the image's CNI plugins to this directory and exit")
	fs.BoolVar(&o.dryRun, "dry-run", false, "print what would change, and exit")
	fs.BoolVar(&o.cleanup, "cleanup", false,
		"delete everything that Twill made on this node and exit; with --healthz-port, stay and be ready")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")
	fs.IntVar(&o.verbosity, "v", 0, "log level: 0 events, 1 and more also every change; SIGUSR1 turns these on and off while the agent runs")
	fs.StringVar(&o.logFormat, "log-format", "text", "text or json")
	for name, f := range ignoredFlags {
		note := func(string) error {
			o.ignored = append(o.ignored, name)
			return nil
		}
		if f.isBool {
			fs.BoolFunc(name, "accepted for flannel, no effect: "+f.why, note)
		} else {
			fs.Func(name, "accepted for flannel, no effect: "+f.why, note)
		}
	}
}

func (o *options) registerStore(fs *flag.FlagSet) {
	fs.StringVar(&o.etcdEndpoints, "etcd-endpoints", "http://127.0.0.1:4001,http://127.0.0.1:2379",
		"etcd servers, comma separated")
	fs.StringVar(&o.etcdPrefix, "etcd-prefix", "/coreos.com/network", "etcd prefix of config and leases")
	fs.StringVar(&o.etcdKeyfile, "etcd-keyfile", "", "TLS key for etcd")
	fs.StringVar(&o.etcdCertfile, "etcd-certfile", "", "TLS certificate for etcd")
	fs.StringVar(&o.etcdCAFile, "etcd-cafile", "", "TLS certificate authority of etcd")
	fs.StringVar(&o.etcdUsername, "etcd-username", "", "user name for etcd")
	fs.StringVar(&o.etcdPassword, "etcd-password", "", "password for etcd (better in the environment)")
	fs.BoolVar(&o.kubeSubnetMgr, "kube-subnet-mgr", false, "lease through the Kubernetes API instead of etcd")
	fs.StringVar(&o.kubeAPIURL, "kube-api-url", "", "Kubernetes API server; empty: kubeconfig's, or the pod's")
	fs.StringVar(&o.kubeconfig, "kubeconfig-file", "", "kubeconfig; empty: the pod's service account")
	fs.StringVar(&o.kubeAnnotationPrefix, "kube-annotation-prefix", "flannel.alpha.coreos.com",
		"prefix of the node annotations")
	fs.StringVar(&o.kubeLeaseNamespace, "kube-lease-namespace", "",
		"lease a subnet by itself where nobody assigns podCIDRs, with Lease objects in this namespace; "+
			"empty: wait for a podCIDR")
	fs.StringVar(&o.netConfigs, "net-config-path", "/etc/kube-flannel/net-conf.json",
		"the network config, unless it is in etcd")
	fs.BoolVar(&o.setNodeNetworkUnavailable, "set-node-network-unavailable", true,
		"keep the node condition NetworkUnavailable in sync with the data path")
	fs.StringVar(&o.leaseFile, "lease-file", "", "lease in this JSON file instead of etcd")
	fs.StringVar(&o.nodeName, "node-name", "",
		"this node's name; empty: NODE_NAME, else the pod's node, else the host name")
	fs.IntVar(&o.renewMargin, "subnet-lease-renew-margin", 60,
		"minutes before its end at which an etcd lease is renewed, 1 to 1439")
}

func (o *options) registerNetwork(fs *flag.FlagSet) {
	fs.Var(&o.iface, "iface", "interface (name or address) between the nodes; repeatable, tried in order")
	fs.Var(&o.ifaceRegex, "iface-regex",
		"regular expression for the interface's address or else its name; repeatable, tried in order "+
			"where no --iface matches")
	fs.StringVar(&o.ifaceCanReach, "iface-can-reach", "",
		"the interface that the route to this address uses; after --iface and --iface-regex")
	fs.StringVar(&o.publicIP, "public-ip", "", "IPv4 address to advertise to peers in place of the interface's")
	fs.StringVar(&o.publicIPv6, "public-ipv6", "", "IPv6 address to advertise to peers in place of the interface's")
	fs.BoolVar(&o.externalIP, "flannel-external-ip", false,
		"with --kube-subnet-mgr: advertise the Node's ExternalIP to peers, if it has one, as k3s' flag of this name")
	fs.BoolVar(&o.ipMasq, "ip-masq", false, "masquerade what pods send out of the cluster's network")
	fs.BoolVar(&o.randomFullyDisable, "ip-masq-fully-random-disable", false, "masquerade without --random-fully")
	fs.Var(&o.noMasquerade, "no-masquerade-cidr",
		"with --ip-masq: a network, IPv4 or IPv6, towards which pods keep their address; repeatable, or separated by commas")
	fs.StringVar(&o.masqFile, "ip-masq-agent-config", "",
		"with --ip-masq: a file in the format of ip-masq-agent's ConfigMap, which is followed; empty: none")
	fs.Var(&o.clusters, "cluster-cidr",
		"a network of pods beside the network config's; repeatable, or separated by commas, as kube-proxy's")
	o.forwardRules = backend.ForwardOn
	fs.Var(&o.forwardRules, "iptables-forward-rules",
		"accept forwarded packets from and to the cluster's network: true (after the rules of others), "+
			"first (before them, network policies included) or false")
	fs.BoolVar(&o.blackhole, "ip-blackhole-route", false,
		"a blackhole route for the node's subnet, for addresses of no pod")
	fs.StringVar(&o.bridge, "bridge", "cni0", "the bridge that pods are plugged into; empty: somebody else makes one, such as Docker")
	fs.IntVar(&o.reachPeers, "reach-peers", 5,
		"other nodes to ask for an answer in each round, small packets and full ones, to say whether packets pass; 0: none")
	fs.DurationVar(&o.reachRound, "reach-round", time.Minute, "how long a round of --reach-peers takes, 1s or more")
	fs.Var(&o.reachDNS, "reach-dns",
		"an address of the cluster's DNS, to be asked in each round too; repeatable, or separated by commas")
	fs.StringVar(&o.keepNodeSource, "keep-node-source", "routed",
		"from a node's own address to pods, keep that address: routed (unless encapsulated), always, "+
			"never (flannel)")
}

// applyEnv sets the flags that the command line did not, from TWILLD_NAME or FLANNELD_NAME. An
// empty variable is ignored.
func applyEnv(fs *flag.FlagSet, environ func(string) (string, bool)) error {
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var err error
	fs.VisitAll(func(f *flag.Flag) {
		for _, prefix := range []string{"TWILLD_", "FLANNELD_"} {
			name := prefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			value, ok := environ(name)
			if !ok || value == "" || given[f.Name] {
				continue
			}
			given[f.Name] = true
			if e := setFlag(fs, f.Name, value); e != nil {
				err = errors.Join(err, fmt.Errorf("environment %s=%q: %w", name, value, e))
			}
		}
	})
	return err
}

// choice returns how the interface is chosen, without what the cluster knows of the node.
func (o *options) choice() (agent.Choice, error) {
	c := agent.Choice{Names: o.iface}
	for _, expr := range o.ifaceRegex {
		re, err := regexp.Compile(expr)
		if err != nil {
			return c, fmt.Errorf("--iface-regex %q: %w", expr, err)
		}
		c.Patterns = append(c.Patterns, re)
	}
	if o.ifaceCanReach != "" {
		a, err := netip.ParseAddr(o.ifaceCanReach)
		if err != nil {
			return c, fmt.Errorf("--iface-can-reach %q: want an IP address", o.ifaceCanReach)
		}
		c.Reach = a
	}
	for _, f := range []struct {
		name, value string
		family      netstate.Family
	}{{"--public-ip", o.publicIP, netstate.IPv4}, {"--public-ipv6", o.publicIPv6, netstate.IPv6}} {
		a, err := netip.ParseAddr(f.value)
		switch {
		case f.value == "":
		case err != nil || netstate.FamilyOf(a) != f.family:
			return c, fmt.Errorf("%s %q: want an %s address", f.name, f.value, f.family)
		default:
			c.Public = append(c.Public, a)
		}
	}
	return c, nil
}

// firewall returns what the flags say about the rules.
func (o *options) firewall() (backend.FirewallConfig, error) {
	keep, err := backend.ParseKeepLocal(o.keepNodeSource)
	if err != nil {
		return backend.FirewallConfig{}, fmt.Errorf("--keep-node-source: %w", err)
	}
	for _, c := range o.clusters {
		if c.Bits() == 0 {
			return backend.FirewallConfig{}, fmt.Errorf("--cluster-cidr %s holds every address: want the network of pods", c)
		}
	}
	if len(o.noMasquerade) > 0 && !o.ipMasq {
		return backend.FirewallConfig{}, errors.New(
			"--no-masquerade-cidr has no effect without --ip-masq: give both or neither")
	}
	if o.masqFile != "" && !o.ipMasq {
		return backend.FirewallConfig{}, errors.New(
			"--ip-masq-agent-config has no effect without --ip-masq: give both or neither")
	}
	return backend.FirewallConfig{
		Masq: o.ipMasq, Random: !o.randomFullyDisable, Forward: o.forwardRules, KeepLocal: keep,
		Clusters: o.clusters, Exempt: o.noMasquerade}, nil
}

// reservations returns the directory in which addresses are freed, empty if there is none or no bridge to know pods by.
func (o *options) reservations() string {
	if o.bridge == "" {
		return ""
	}
	return o.pods.store(o.cniSource)
}

// checkBridge returns an error for what cannot be the name of an interface.
func (o *options) checkBridge() error {
	if o.bridge == "" && o.pods.reservations != "" {
		return errors.New("--reservations-dir needs a --bridge: by its ports twilld knows which pods there are")
	}
	if n := len(o.bridge); n > maxName || o.bridge == "." || o.bridge == ".." ||
		strings.ContainsAny(o.bridge, "/: \t\n") {
		return fmt.Errorf("--bridge %q: want the name of an interface, of up to %d letters, or nothing", o.bridge, maxName)
	}
	return nil
}

// maxName is how long the kernel lets an interface's name be, in bytes (IFNAMSIZ less its terminator).
const maxName = 15

// settings returns what the flags alone say of an agent. It opens nothing.
func (o *options) settings() (agent.Settings, error) {
	choice, err := o.choice()
	rules, err2 := o.firewall()
	s := agent.Settings{
		SubnetFile: o.subnetFile, Checkpoint: o.checkpointFile, Bridge: o.bridge, Choice: choice, Firewall: rules,
		Masquerade: o.masqFile, Blackhole: o.blackhole, Healthz: o.healthz(), BinDir: o.pods.binDir,
		Conflist: agent.Conflist{Source: o.cniSource, Target: o.cniTarget}, Reservations: o.reservations(),
		Kube: agent.KubeSettings{Use: o.kubeSubnetMgr, Kubeconfig: o.kubeconfig, URL: o.kubeAPIURL,
			AnnotationPrefix: o.kubeAnnotationPrefix},
		Policies: o.policy.settings(),
		BPFFS:    o.fastPath.dir,
		FastPath: o.fastPath.mode,

		ReachPeers: o.reachPeers, ReachRound: o.reachRound, ReachDNS: o.reachDNS,
	}
	return s, cmp.Or(err, err2, o.checkBridge(), o.checkExternalIP(), o.checkPolicy(), o.fastPath.check(), o.checkReach())
}

// checkReach returns an error for what is no number of peers, or no round.
func (o *options) checkReach() error {
	switch {
	case o.reachPeers < 0 || o.reachPeers > maxReachPeers:
		return fmt.Errorf("--reach-peers %d: want 0 to %d", o.reachPeers, maxReachPeers)
	case o.reachRound < time.Second:
		return fmt.Errorf("--reach-round %s: want 1s or more", o.reachRound)
	case o.reachPeers == 0 && len(o.reachDNS) > 0:
		return errors.New("--reach-dns has no effect with --reach-peers 0: give both or neither")
	}
	return nil
}

// maxReachPeers is how many peers a node may ask in a round, and so how many ask it.
const maxReachPeers = 100

// checkExternalIP returns an error if --flannel-external-ip does not fit the other flags.
func (o *options) checkExternalIP() error {
	switch {
	case !o.externalIP:
		return nil
	case !o.kubeSubnetMgr:
		return errors.New("--flannel-external-ip needs --kube-subnet-mgr: the ExternalIP is the Node object's")
	case o.publicIP != "" || o.publicIPv6 != "":
		return errors.New("--flannel-external-ip and --public-ip both say what to advertise: give one")
	}
	return nil
}

// healthz returns where probes are answered, empty for nowhere.
func (o *options) healthz() string {
	if o.healthzPort == 0 {
		return ""
	}
	return net.JoinHostPort(o.healthzIP, strconv.Itoa(o.healthzPort))
}

// renew returns the margin before an etcd lease's end.
func (o *options) renew() (time.Duration, error) {
	if o.renewMargin < 1 || o.renewMargin > 1439 {
		return 0, fmt.Errorf("--subnet-lease-renew-margin %d: want 1 to 1439 minutes", o.renewMargin)
	}
	return time.Duration(o.renewMargin) * time.Minute, nil
}

// node returns the name that the flags or the environment give, else the host's.
func (o *options) node() (string, error) {
	if o.nodeName != "" {
		return o.nodeName, nil
	}
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name, nil
	}
	return os.Hostname()
}
