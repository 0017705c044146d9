package faults

import (
	"context"

	"github.com/twill-net/twill/lab"
)

// deviceFaults injure the VXLAN device, the bridge and the underlay's link.
var deviceFaults = []Fault{
	{
		Name:        "vtep-deleted",
		Finding:     "vtep-missing",
		Description: "the overlay's device is deleted",
		Backends:    overlays,
		Inject:      script("ip link del {dev}"),
	},
	{
		Name:        "vtep-down",
		Finding:     "vtep-down",
		Description: "the overlay's device is set down",
		Backends:    overlays,
		Inject:      script("ip link set {dev} down"),
	},
	{
		Name:        "vtep-address",
		Finding:     "vtep-address",
		Description: "the overlay's device loses its address",
		Backends:    overlays,
		Inject:      script("ip addr del {own}/32 dev {dev}"),
	},
	{
		Name:        "vtep-mtu",
		Finding:     "vtep-mtu",
		Description: "the overlay device's MTU is set to 1000",
		Backends:    overlays,
		Inject:      script("ip link set {dev} mtu 1000"),
	},
	{Name: "vtep-mac", Finding: "vtep-mac", Description: "the VXLAN device's MAC is changed", Backends: vxlanOnly,
		Inject: script("ip link set {dev} address 0e:00:00:00:00:88")},
	{
		Name:        "vtep-foreign",
		Finding:     "device-foreign",
		Description: "the VXLAN device is renamed, and one of another VNI takes its name",
		Backends:    vxlanOnly,
		Inject: race("link add other type vxlan id 77 dev {eth} dstport 8472 nolearning", "link set {dev} down",
			"link set {dev} name mine", "link set other name {dev}"),
	},
	{
		Name:        "peer-vtep-deleted",
		Description: "the peer's VXLAN device is deleted",
		Backends:    vxlanOnly,
		Inject:      onPeer(script("ip link del {dev}")),
	},
	{
		Name:        "bridge-deleted",
		Finding:     "bridge-missing",
		Description: "cni0 is deleted under its pods",
		Inject:      script("ip link del cni0"),
	},
	{
		Name:        "bridge-renamed",
		Finding:     "bridge-missing",
		Description: "cni0 gets another name",
		Inject:      race("link set cni0 down", "link set cni0 name mine", "link set mine up"),
	},
	{
		Name:        "bridge-down",
		Finding:     "bridge-down",
		Description: "cni0 is set down",
		Inject:      script("ip link set cni0 down"),
	},
	{
		Name:        "bridge-address",
		Finding:     "gateway-address",
		Description: "cni0 loses its address",
		Inject:      script("ip addr del {gateway} dev cni0"),
	},
	{
		Name:        "bridge-mtu",
		Finding:     "bridge-mtu",
		Description: "cni0's MTU is set to 1000",
		Inject:      script("ip link set cni0 mtu 1000"),
	},
	{Name: "underlay-flap", Description: "the underlay's interface goes down and up again", Inject: flapUnderlay},
}

// hostFaults injure sysctls and rules.
var hostFaults = []Fault{
	{
		Name:        "ip-forward-off",
		Finding:     "ip-forward-off",
		Description: "net.ipv4.ip_forward is turned off",
		Inject:      script("sysctl -q -w net.ipv4.ip_forward=0"),
	},
	{
		Name:        "rp-filter-strict",
		Finding:     "rp-filter",
		Description: "strict reverse path checks on the overlay's device",
		Backends:    overlays,
		IPv4:        true,
		Inject:      script("sysctl -q -w net/ipv4/conf/{dev}/rp_filter=1"),
	},
	{
		Name:        "firewall-flushed",
		Finding:     "masquerade-missing",
		Description: "all rules are flushed",
		Inject:      script("nft flush ruleset"),
	},
	{
		Name:        "forward-drop",
		Finding:     "forward-rejected",
		Description: "a firewall is loaded that ends ip filter FORWARD with a REJECT and a DROP policy",
		Inject: script(
			"iptables -w -F FORWARD",
			"iptables -w -P FORWARD DROP",
			"iptables -w -A FORWARD -j REJECT",
		),
	},
	{
		Name:        "chain-added",
		Finding:     "forward-policy",
		Description: "a chain that drops whatever is forwarded is added to Twill's nft table",
		Inject: script("nft add table ip flannel-ipv4",
			"nft add chain ip flannel-ipv4 extra { type filter hook forward priority 9 ; policy drop ; }"),
	},
	{
		Name:        "guard-deleted",
		Finding:     "guard-rules",
		Description: "the rules that keep pods out of the overlay are deleted",
		Backends:    []string{"vxlan", "udp", "ipip"},
		Inject:      script("nft delete chain ip flannel-ipv4 guard-forward"),
		Lossless:    true,
	},
	{
		Name:        "masquerade-deleted",
		Finding:     "masquerade-missing",
		Description: "the masquerading rules are deleted",
		Inject:      script("nft delete chain ip flannel-ipv4 postrtg"),
	},
}

// flapUnderlay gives IPv6 its address and routes back, as who configured them would: the kernel has taken
// them with the link.
func flapUnderlay(ctx context.Context, v *Target) error {
	err := script("ip link set {eth} down", "ip link set {eth} up")(ctx, v)
	if err != nil || v.Lab.Spec().Family == lab.IPv4 {
		return err
	}
	return restoreUnderlay(ctx, v)
}
