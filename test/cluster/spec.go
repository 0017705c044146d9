// Package cluster runs a genuine Kubernetes on one machine: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, and nodes that are network, mount, PID, UTS and IPC namespaces with containerd, kubelet and
// kube-proxy. Unmodified manifests work on it, because each node has /opt/cni/bin, /etc/cni/net.d, /run, /var and
// /sys of its own. Nothing of it leaves the machine: the underlay is a bridge in a namespace.
package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
)

// Spec says what cluster to run.
type Spec struct {
	Name  string // prefix of its namespaces, 2 to 8 characters
	Dir   string // state, logs and the nodes' file systems
	Nodes int
	// SelfLease runs kube-controller-manager with --allocate-node-cidrs=false: nobody assigns podCIDRs.
	SelfLease bool
	Families  Families
	ProxyMode ProxyMode
	Backend   string // of Twill; empty: as in the manifest, vxlan
	// NetworkPolicy makes the agents enforce NetworkPolicies, and with ClusterNetworkPolicy those, too.
	NetworkPolicy, ClusterNetworkPolicy bool
	FastPath                            bool // the agents have the fast path of pods' packets
}

// Families is the address families of a cluster: its pods, its services and its underlay. The empty one is Dual.
type Families string

// The choices.
const (
	Dual     Families = "dual"
	IPv4Only Families = "ipv4"
	IPv6Only Families = "ipv6"
)

// ProxyMode is kube-proxy's --proxy-mode. The empty one is IPTables.
type ProxyMode string

// The choices.
const (
	IPTables ProxyMode = "iptables"
	NFTables ProxyMode = "nftables"
)

// The networks of a dual-stack cluster, IPv4 first; others have one of each.
var (
	PodNetworks = []netip.Prefix{
		netip.MustParsePrefix("10.244.0.0/16"),
		netip.MustParsePrefix("fd00:10:244::/48"),
	}
	ServiceNetworks = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	underlays       = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24"), netip.MustParsePrefix("fd30::/64")}
)

const (
	// PodImage is the image of test/cluster/cmd/pod: the sandbox, and what tests run.
	PodImage = "localhost/twill-pod:1"
	// DNSImage is CoreDNS as tools/coredns builds it.
	DNSImage = "localhost/twill-coredns:1"
	// TwillImage is the image of the Dockerfile as the nodes know it.
	TwillImage = "ghcr.io/twill-net/twill:v0.1.0"

	apiPort = 6443
	mtu     = 1500
)

// DefaultDir is where the cluster of make cluster lives: on a real file system, since containerd's overlays cannot
// stand on another overlay.
func DefaultDir() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = "/root/.cache" // without a HOME; a cluster is root's, and nobody else may own its directory
	}
	return filepath.Join(cache, "twill", "cluster")
}

// withDefaults says what is meant by empty fields, so that specs can be compared.
func (s Spec) withDefaults() Spec {
	s.Families, s.ProxyMode, s.Backend = cmp.Or(
		s.Families,
		Dual,
	), cmp.Or(
		s.ProxyMode,
		IPTables,
	), cmp.Or(
		s.Backend,
		"vxlan",
	)
	return s
}

func (s Spec) validate() error {
	if s.Nodes < 1 || s.Nodes > 50 {
		return fmt.Errorf("%d nodes: want 1 to 50", s.Nodes)
	}
	if len(s.Name) < 2 || len(s.Name) > 8 {
		return fmt.Errorf("name %q: want 2 to 8 characters", s.Name)
	}
	if !slices.Contains([]Families{Dual, IPv4Only, IPv6Only}, s.Families) {
		return fmt.Errorf("address families %q: want dual, ipv4 or ipv6", s.Families)
	}
	if !slices.Contains([]ProxyMode{IPTables, NFTables}, s.ProxyMode) {
		return fmt.Errorf("kube-proxy's mode %q: want iptables or nftables", s.ProxyMode)
	}
	return nil
}

// NodeName is the name of node number n, from 1.
func (s Spec) NodeName(n int) string { return fmt.Sprintf("node%d", n) }

// Underlay is the addresses of node number n on the underlay, IPv4 first.
func (s Spec) Underlay(n int) []netip.Addr { return s.underlayAddrs(10 + n) }

// Outside is the addresses of a host on the underlay that is no node and knows no way to pods.
func (s Spec) Outside() []netip.Addr { return s.underlayAddrs(outsideHost) }

// outsideHost is the last part of the addresses of the host that is no node.
const outsideHost = 100

func (s Spec) underlayAddrs(host int) []netip.Addr {
	var addrs []netip.Addr
	for _, p := range s.inFamilies(underlays) {
		addrs = append(addrs, nth(p, host))
	}
	return addrs
}

// DNSAddress is where the cluster's DNS belongs: the tenth address of its first network for services.
func (s Spec) DNSAddress() netip.Addr { return nth(s.inFamilies(ServiceNetworks)[0], 10) }

// inFamilies returns those of the networks that the cluster has.
func (s Spec) inFamilies(networks []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(networks), func(p netip.Prefix) bool {
		return s.Families == IPv4Only && p.Addr().Is6() || s.Families == IPv6Only && p.Addr().Is4()
	})
}

// nth is address number n, below 256, of a network.
func nth(p netip.Prefix, n int) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	bytes[len(bytes)-1] = byte(n)
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}

func (s Spec) path(elem ...string) string {
	return filepath.Join(append([]string{s.Dir}, elem...)...)
}

// NodeFiles is a node's own file below /etc, /opt or /var, as the machine sees it.
func (s Spec) NodeFiles(name, path string) string { return filepath.Join(s.nodeDir(name), "fs", path) }

// PodProgram is the program of PodImage.
func (s Spec) PodProgram() string { return s.path("pod") }

func (s Spec) nodeDir(name string) string { return s.path("nodes", name) }

// APIDir is where the API server's keys and log are.
func (s Spec) APIDir() string { return s.path("apiserver") }

// Kubeconfig is the administrator's; its server is on loopback.
func (s Spec) Kubeconfig() string { return s.path("kubeconfig") }
