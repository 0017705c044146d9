package fabric

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/twill-net/twill/cloud/fake"
)

// table is the routing table of a lab's network, and subnet its only subnet.
const (
	table  = "rtb-lab"
	subnet = "subnet-lab"
)

// provider is how a fabric plays one.
type provider struct {
	network string
	nic     func(Machine) fake.NIC
	front   func(n *fake.Network, block netip.Prefix) http.Handler
	env     func(url string) []string // by which agents find the API
}

// ownBlock is the network's own, of which the underlay's segments are part.
var ownBlock = netip.MustParsePrefix("192.168.32.0/20")

var providers = map[string]provider{
	"ali-vpc": {
		network: "vpc-lab",
		nic: func(m Machine) fake.NIC {
			return fake.NIC{ID: "i-" + m.Name, Instance: "i-" + m.Name, MAC: m.MAC, Addrs: m.Addrs, Subnet: subnet}
		},
		front: func(n *fake.Network, block netip.Prefix) http.Handler {
			return fake.Ali(n, fake.AliOptions{Block: block, VSwitches: map[string]netip.Prefix{subnet: block}, Role: "twill"})
		},
		env: func(url string) []string { return []string{"VPC_ENDPOINT=" + url, "ECS_ENDPOINT=" + url} },
	},
	"aws-vpc": {
		network: "vpc-lab",
		nic: func(m Machine) fake.NIC {
			return fake.NIC{ID: "eni-" + m.Name, Instance: "i-" + m.Name, MAC: m.MAC, Addrs: m.Addrs, Subnet: subnet}
		},
		front: func(n *fake.Network, block netip.Prefix) http.Handler {
			return fake.AWS(n, fake.AWSOptions{CIDRs: []netip.Prefix{block}})
		},
		env: func(url string) []string { return []string{"AWS_ENDPOINT_URL_EC2=" + url} },
	},
	"gce": {
		network: "projects/lab/global/networks/lab",
		nic: func(m Machine) fake.NIC {
			instance := "projects/lab/zones/lab-a/instances/" + m.Name
			return fake.NIC{ID: instance, Instance: instance, MAC: m.MAC, Addrs: m.Addrs, Subnet: subnet, Forwards: true}
		},
		front: func(n *fake.Network, _ netip.Prefix) http.Handler { return fake.GCE(n, fake.GCEOptions{}) },
		env: func(url string) []string {
			return []string{"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE=" + url + "/compute/v1/"}
		},
	},
}

// Environment returns the variables by which an agent finds a lab's cloud.
func Environment(kind, url string) []string {
	p, ok := providers[strings.ToLower(kind)]
	if !ok {
		return nil
	}
	return p.env(url)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
