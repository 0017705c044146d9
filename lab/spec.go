package lab

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/twill-net/twill/lab/rootless"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Spec says what a lab is made of. The zero value is a lab of three nodes with two pods each.
type Spec struct {
	Name          string            `json:"name"`  // of the lab, and the prefix of its namespaces: "twill"
	Nodes         int               `json:"nodes"` // 3
	Pods          int               `json:"pods"`  // on each node; negative: none; 0: 2
	Underlay      string            `json:"underlay"`
	Family        string            `json:"family"`                  // "4", "6" or "dual"
	Backend       string            `json:"backend"`                 // "vxlan"
	DirectRouting bool              `json:"directRouting"`           // of vxlan and ipip
	NetConf       json.RawMessage   `json:"netConf,omitempty"`       // net-conf.json; empty: made from Family, Backend and DirectRouting
	Store         string            `json:"store"`                   // "file", "etcd" or "kube"
	Agents        map[string]string `json:"agents"`                  // a node's agent binary; "": that of all other nodes
	Names         []string          `json:"names,omitempty"`         // of the first nodes; the others are node<number>
	Sites         map[string]Site   `json:"sites,omitempty"`         // how a node is plugged in; "": all other nodes
	NetworkPolicy bool              `json:"networkPolicy,omitempty"` // agents enforce the policies of Lab.ApplyManifest
	FastPath      bool              `json:"fastPath,omitempty"`      // agents have pods' packets take the fast path
	Proxy         string            `json:"proxy,omitempty"`         // mode of each node's kube-proxy; empty: there is none
	Bare          bool              `json:"bare,omitempty"`          // hosts on an underlay: no store, no agents, no pods

	Programs Programs `json:"-"` // FindPrograms
	Dir      string   `json:"-"` // where labs keep their state: root's in /run/twill/lab
	Keep     bool     `json:"-"` // leave what stands when Up does not come to its end
}

// The underlays: one segment that all nodes share, or two with a router between them.
const (
	L2 = "l2"
	L3 = "l3"
)

// The address families of a lab.
const (
	IPv4 = "4"
	IPv6 = "6"
	Dual = "dual"
)

// The stores that a lab can have.
const (
	File = "file"
	Etcd = "etcd"
	Kube = "kube"
)

// Modes are the modes that kube-proxy can have.
var Modes = []string{"iptables", "nftables"}

// DefaultDir is where root's labs keep their state.
const DefaultDir = "/run/twill/lab"

// DefaultName is the name of a lab that was not given one.
const DefaultName = "twill"

// maxNodes is what the underlay's addressing has room for: the nodes' addresses end in 101 to 254.
const maxNodes = 154

// A namespace is named <lab>-<node>[-<pod>], so a name with a dash could be part of another lab's.
var validName = regexp.MustCompile(`^[a-z][a-z0-9]{0,30}$`)

// A node's name is that of its cable's far end too, which may have a letter more, and 15 in all.
var validNode = regexp.MustCompile(`^[a-z][a-z0-9]{0,9}$`)

// nodeName is the name of node number n, counted from 1.
func (s Spec) nodeName(n int) string {
	if n <= len(s.Names) {
		return s.Names[n-1]
	}
	return fmt.Sprintf("node%d", n)
}

// NodeNames are the names of all nodes, in their order.
func (s Spec) NodeNames() []string {
	var names []string
	for n := 1; n <= s.Nodes; n++ {
		names = append(names, s.nodeName(n))
	}
	return names
}

func (s Spec) withDefaults() Spec {
	s.Name = cmp.Or(s.Name, DefaultName)
	s.Nodes, s.Pods = cmp.Or(s.Nodes, 3), max(cmp.Or(s.Pods, 2), 0)
	s.Underlay = cmp.Or(s.Underlay, L2)
	s.Family = cmp.Or(s.Family, IPv4)
	s.Backend = cmp.Or(s.Backend, "vxlan")
	s.Store = cmp.Or(s.Store, File)
	s.Dir = cmp.Or(s.Dir, rootless.LabDir(), DefaultDir)
	return s
}

func (s Spec) check() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !validName.MatchString(s.Name) {
		fault("name %q: want lower-case letters and digits, a letter first", s.Name)
	}
	if s.Nodes < 1 || s.Nodes > maxNodes {
		fault("nodes %d: want 1 to %d", s.Nodes, maxNodes)
	}
	for _, f := range []struct {
		name, value string
		want        []string
	}{{"underlay", s.Underlay, []string{L2, L3}}, {"family", s.Family, []string{IPv4, IPv6, Dual}}, {"store", s.Store, []string{File, Etcd, Kube}}} {
		if !slices.Contains(f.want, f.value) {
			fault("%s %q: want %s", f.name, f.value, strings.Join(f.want, ", "))
		}
	}
	if s.Proxy != "" && !slices.Contains(Modes, s.Proxy) {
		fault("proxy %q: want %s", s.Proxy, strings.Join(Modes, ", "))
	}
	if s.Proxy != "" && s.Store != Kube {
		fault("proxy %s: kube-proxy follows the Services of an API server: want the store %s, not %s", s.Proxy, Kube, s.Store)
	}
	if s.DirectRouting && s.Backend != "vxlan" && s.Backend != "ipip" {
		fault("direct routing: backend %s has no such option, only vxlan and ipip have", s.Backend)
	}
	for node := range s.Agents {
		if node != "" && !slices.Contains(s.NodeNames(), node) {
			fault("agent for %q: want one of %v", node, s.NodeNames())
		}
	}
	for _, name := range s.Names {
		if !validNode.MatchString(name) || name == underlayName || name == outsideName {
			fault(
				"node name %q: want at most ten lower-case letters and digits, a letter first, and not underlay or outside",
				name,
			)
		}
	}
	if names := s.NodeNames(); len(slices.Compact(slices.Sorted(slices.Values(names)))) < len(names) {
		fault("nodes %v: want different names", names)
	}
	errs = append(errs, s.checkSites(), s.checkCloud())
	if len(s.NetConf) > 0 {
		if _, err := subnet.ParseConfig(s.NetConf); err != nil {
			fault("net config: %w", err)
		}
	}
	return errors.Join(errs...)
}

// Families returns the address families of the lab's nodes, IPv4 first.
func (s Spec) Families() []netstate.Family {
	switch s.Family {
	case IPv4:
		return []netstate.Family{netstate.IPv4}
	case IPv6:
		return []netstate.Family{netstate.IPv6}
	}
	return netstate.Families[:]
}

// netConf is the net-conf.json that the agents get.
func (s Spec) netConf() ([]byte, error) {
	if len(s.NetConf) > 0 {
		return s.NetConf, nil
	}
	conf := map[string]any{"EnableIPv4": false}
	for _, f := range s.Families() {
		if f == netstate.IPv4 {
			conf["EnableIPv4"], conf["Network"] = true, "10.244.0.0/16"
			continue
		}
		conf["EnableIPv6"], conf["IPv6Network"], conf["IPv6SubnetLen"] = true, "fd00:244::/56", 64
	}
	options := map[string]any{"Type": s.Backend}
	if s.DirectRouting {
		options["DirectRouting"] = true
	}
	if s.Backend == "ipsec" { // its least is 96 characters
		options["PSK"] = rand.Text() + rand.Text() + rand.Text() + rand.Text()
	}
	conf["Backend"] = options
	data, err := json.MarshalIndent(conf, "", "  ")
	return append(data, '\n'), err
}

// config is net-conf.json as the agents read it.
func (s Spec) config() (subnet.Config, error) {
	data, err := s.netConf()
	if err != nil {
		return subnet.Config{}, err
	}
	return subnet.ParseConfig(data)
}

// podCIDRs are what a controller manager would give to node number n from the networks of the config.
func (s Spec) podCIDRs(n int) ([]netip.Prefix, error) {
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	var cidrs []netip.Prefix
	for _, pool := range config.Pools {
		cidrs = append(cidrs, nthSubnet(pool.Network, pool.SubnetLen, n))
	}
	return cidrs, nil
}

// nthSubnet is network number n, counted from 0, of the given length.
func nthSubnet(network netip.Prefix, length, n int) netip.Prefix {
	addr := network.Masked().Addr()
	b := addr.AsSlice()
	carry := uint64(n) << (7 - (length-1)%8)
	for i := (length - 1) / 8; i >= 0 && carry > 0; i-- {
		carry += uint64(b[i])
		b[i], carry = byte(carry), carry>>8
	}
	addr, _ = netip.AddrFromSlice(b)
	return netip.PrefixFrom(addr, length)
}

func (s Spec) dir() string { return filepath.Join(s.Dir, s.Name) }

// same reports whether two specs ask for the same lab.
func (s Spec) same(o Spec) bool {
	a, errA := json.Marshal(s)
	b, errB := json.Marshal(o)
	return errA == nil && errB == nil && string(a) == string(b)
}
