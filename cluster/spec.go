// Package cluster runs a genuine Kubernetes on one machine: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, and nodes that are network, mount, PID, UTS and IPC namespaces with containerd, kubelet and
// kube-proxy. Unmodified manifests work on it, because each node has /opt/cni/bin, /etc/cni/net.d, /run, /var and
// /sys of its own. Nothing of it leaves the machine: the underlay is a bridge in a namespace.
package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Spec says what cluster to run.
type Spec struct {
	Name  string // prefix of its namespaces, 2 to 8 characters
	Dir   string // state, logs and the nodes' file systems
	Nodes int
	// SelfLease runs kube-controller-manager with --allocate-node-cidrs=false: nobody assigns podCIDRs.
	SelfLease bool
}

// The networks of every cluster. All are dual-stack.
var (
	PodNetworks     = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	ServiceNetworks = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	underlays       = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24"), netip.MustParsePrefix("fd30::/64")}
)

const (
	// DNSAddress is where a cluster's DNS belongs.
	DNSAddress = "10.96.0.10"
	// PodImage is the image of cluster/cmd/pod: the sandbox, and what tests run.
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
		cache = "/var/tmp"
	}
	return filepath.Join(cache, "twill", "cluster")
}

func (s Spec) validate() error {
	if s.Nodes < 1 || s.Nodes > 50 {
		return fmt.Errorf("%d nodes: want 1 to 50", s.Nodes)
	}
	if len(s.Name) < 2 || len(s.Name) > 8 {
		return fmt.Errorf("name %q: want 2 to 8 characters", s.Name)
	}
	return nil
}

// NodeName is the name of node number n, from 1.
func (s Spec) NodeName(n int) string { return fmt.Sprintf("node%d", n) }

// Underlay is the addresses of node number n on the underlay, IPv4 first.
func (s Spec) Underlay(n int) []netip.Addr { return underlayAddrs(10 + n) }

// Outside is the addresses of a host on the underlay that is no node and knows no way to pods.
func (s Spec) Outside() []netip.Addr { return underlayAddrs(100) }

func underlayAddrs(host int) []netip.Addr {
	v4 := underlays[0].Addr().As4()
	v4[3] = byte(host)
	v6 := underlays[1].Addr().As16()
	v6[15] = byte(host)
	return []netip.Addr{netip.AddrFrom4(v4), netip.AddrFrom16(v6)}
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
