package faults

import (
	"context"
	"errors"
)

// ruleFaults are other people's firewall rules. No agent touches those.
var ruleFaults = []Fault{
	{
		Name:        "forward-reject",
		Finding:     "forward-rejected",
		Description: "a REJECT for pods stands first in ip filter FORWARD",
		KeepAgent:   true,
		Inject: script(
			"iptables -w -I FORWARD 1 -s 10.244.0.0/16 -j REJECT",
		),
		Undo: script("iptables -w -D FORWARD -s 10.244.0.0/16 -j REJECT"),
	},
	{
		Name:        "forward-engine",
		Finding:     "forward-rejected",
		Description: "a policy engine's chain rejects what comes from a peer's pods",
		KeepAgent:   true,
		Inject: script(
			"iptables -w -N POLICIES",
			"iptables -w -A POLICIES -s {peer} -j REJECT",
			"iptables -w -I FORWARD 1 -j POLICIES",
		),
		Undo: script("iptables -w -D FORWARD -j POLICIES", "iptables -w -F POLICIES", "iptables -w -X POLICIES"),
	},
	{
		Name:        "forward-policy",
		Finding:     "forward-policy",
		Description: "a DROP policy and no rule of ours in ip filter FORWARD",
		Inject: script(
			"iptables -w -F FORWARD",
			"iptables -w -P FORWARD DROP",
		),
		Undo: script("iptables -w -P FORWARD ACCEPT"),
	},
	{
		Name:        "forward-other-table",
		Finding:     "forward-rejected",
		Description: "another firewall's nft table drops what is forwarded from pods",
		Inject: script(
			"nft add table inet other",
			"nft add chain inet other through { type filter hook forward priority 10 ; }",
			"nft add rule inet other through ip saddr 10.244.0.0/16 counter drop",
		),
		Undo: script("nft delete table inet other"),
	},
	{Name: "raw-drop", Finding: "prerouting-dropped", Description: "a rule in raw PREROUTING drops a peer's pods",
		Inject: script(
			"iptables -w -t raw -I PREROUTING 1 -s {peer} -j DROP",
		), Undo: script("iptables -w -t raw -D PREROUTING -s {peer} -j DROP")},
	{
		Name:        "mangle-drop",
		Finding:     "postrouting-dropped",
		Description: "a rule in mangle POSTROUTING drops packets to a peer's pods",
		Inject: script(
			"iptables -w -t mangle -I POSTROUTING 1 -d {peer} -j DROP",
		),
		Undo: script("iptables -w -t mangle -D POSTROUTING -d {peer} -j DROP"),
	},
	{
		Name:        "bridge-nf",
		Finding:     "bridge-nf-dropped",
		Description: "bridged packets go through iptables, where a rule drops them",
		Inject: script(
			"sysctl -q -w net.bridge.bridge-nf-call-iptables=1",
			"iptables -w -I FORWARD 1 -i cni0 -o cni0 -j DROP",
		),
		Undo: script("iptables -w -D FORWARD -i cni0 -o cni0 -j DROP"),
	},
	{
		Name:        "br-netfilter-missing",
		Finding:     "br-netfilter-missing",
		Description: "bridged packets do not go through iptables, where kube-proxy's rules are",
		Inject: script(
			"iptables -w -t nat -N KUBE-SERVICES",
			"sysctl -q -w net.bridge.bridge-nf-call-iptables=0",
		),
		Undo: script(
			"iptables -w -t nat -X KUBE-SERVICES",
			"sysctl -q -w net.bridge.bridge-nf-call-iptables=1",
		),
	},
	{
		Name:        "masquerade-all",
		Finding:     "masquerade-catches-pods",
		Description: "somebody masquerades all that pods send",
		Inject:      script("iptables -w -t nat -I POSTROUTING 1 -s 10.244.0.0/16 -j MASQUERADE"),
		Undo:        script("iptables -w -t nat -D POSTROUTING -s 10.244.0.0/16 -j MASQUERADE"),
	},
	{
		Name:        "snat-other-table",
		Finding:     "masquerade-catches-pods",
		Description: "another nft table masquerades what leaves by any device but the bridge",
		Inject: script(
			"nft add table ip other",
			"nft add chain ip other post { type nat hook postrouting priority 90 ; }",
			"nft add rule ip other post oifname != cni0 masquerade",
		),
		Undo: script("nft delete table ip other"),
	},
	{
		Name:        "udp-out-filtered",
		Finding:     "udp-out-filtered",
		Description: "the node's firewall drops encapsulated packets that leave",
		Backends:    overlays,
		Inject: script(
			"iptables -w -I OUTPUT 1 -p {wrapped} -j DROP",
		),
		Undo: script("iptables -w -D OUTPUT -p {wrapped} -j DROP"),
	},
	{
		Name:        "udp-in-filtered",
		Finding:     "udp-in-filtered",
		Description: "the node's firewall drops encapsulated packets that come in",
		Backends:    overlays,
		Inject: script(
			"iptables -w -I INPUT 1 -p {wrapped} -j DROP",
		),
		Undo: script("iptables -w -D INPUT -p {wrapped} -j DROP"),
	},
	{
		Name:        "input-policy",
		Finding:     "udp-in-filtered",
		Description: "a DROP policy in INPUT that lets only SSH in",
		Backends:    overlays,
		Inject:      script("iptables -w -A INPUT -p tcp --dport 22 -j ACCEPT", "iptables -w -P INPUT DROP"),
		Undo:        script("iptables -w -P INPUT ACCEPT", "iptables -w -D INPUT -p tcp --dport 22 -j ACCEPT"),
	},
}

// wayFaults turn packets aside without touching an entry of ours, or take the ground away under all of them.
var wayFaults = []Fault{
	{
		Name:        "route-shadowed",
		Finding:     "route-shadowed",
		Description: "a more specific route leads half of a peer's pods elsewhere",
		Inject: script(
			"ip route add {half} via 192.168.33.1 dev {eth} proto static",
		),
		Undo: script("ip route del {half} via 192.168.33.1 dev {eth}"),
	},
	{
		Name:        "policy-rule",
		Finding:     "policy-rule",
		Description: "a policy rule sends a peer's pods to a table that refuses them",
		Inject: script(
			"ip route add unreachable default table 100",
			"ip rule add to {peer} lookup 100 priority 100",
		),
		Undo: script(
			"ip rule del to {peer} lookup 100 priority 100",
			"ip route del unreachable default table 100",
		),
	},
	{
		Name:        "underlay-blackhole",
		Finding:     "underlay-unreachable",
		Description: "a blackhole route takes what is for the peer's own address",
		Inject:      script("ip route add blackhole {at}/32"),
		Undo:        script("ip route del blackhole {at}/32"),
	},
	{
		Name:        "underlay-neighbour",
		Finding:     "underlay-neighbour",
		Description: "a permanent ARP entry with a wrong MAC for the peer's own address",
		Inject: script(
			"ip neigh replace {at} lladdr 0e:00:00:00:00:44 dev {eth} nud permanent",
		),
		Undo: script("ip neigh del {at} dev {eth}"),
	},
	{
		Name:        "network-overlap",
		Finding:     "network-overlap",
		Description: "a container bridge of another program has addresses of the pods' network",
		Inject: script(
			"ip link add br9 type bridge",
			"ip addr add 10.244.77.1/24 dev br9",
			"ip link set br9 up",
		),
		Undo: script("ip link del br9"),
	},
	{
		Name:        "bridge-old-address",
		Finding:     "bridge-address-foreign",
		Description: "cni0 has an address of an earlier lease",
		Inject:      script("ip addr add 10.244.250.1/24 dev cni0"),
	},
	{
		Name:        "device-forwarding",
		IPv4:        true,
		Finding:     "device-forwarding-off",
		Description: "forwarding is off for the bridge alone",
		Inject: script(
			"sysctl -q -w net/ipv4/conf/cni0/forwarding=0",
		),
	},
	{Name: "arp-ignored", Finding: "sysctl", Description: "the bridge answers no ARP request", IPv4: true,
		Inject: script("sysctl -q -w net/ipv4/conf/cni0/arp_ignore=8")},
	{Name: "nobody-asked", Finding: "sysctl", Description: "the node asks for no pod's hardware address",
		Inject: script("sysctl -q -w net/ipv4/neigh/cni0/mcast_solicit=0")},
	{Name: "underlay-down", Finding: "underlay-missing", Description: "the underlay's interface is down",
		Inject: script("ip link set {eth} down"), Undo: restoreUnderlay},
	{
		Name:        "underlay-address-lost",
		Finding:     "underlay-missing",
		Description: "the underlay's interface loses its address",
		Inject:      script("ip addr del {self}/24 dev {eth}"),
		Undo:        restoreUnderlay,
	},
	{
		Name:        "underlay-address-changed",
		Finding:     "underlay-address",
		Description: "the underlay's interface gets another address, by DHCP for instance",
		Inject: script(
			"ip addr add 192.168.33.223/24 dev {eth}",
			"ip addr del {self}/24 dev {eth}",
			"ip addr replace 192.168.33.223/24 dev {eth}",
		),
		Undo: func(ctx context.Context, v *Target) error {
			return errors.Join(script("ip addr del 192.168.33.223/24 dev {eth}")(ctx, v), restoreUnderlay(ctx, v))
		},
	},
	{Name: "underlay-mtu", Finding: "underlay-mtu", Description: "the underlay's MTU is lowered under running pods",
		Inject: script("ip link set {eth} mtu 1400"), Undo: script("ip link set {eth} mtu 1500")},
	{
		Name:        "vtep-qdisc",
		Finding:     "qdisc-drops",
		Description: "a queueing discipline on the overlay's device has no room for any packet",
		Backends:    overlays,
		Probe:       true,
		Inject:      script("tc qdisc add dev {dev} root tbf rate 1mbit burst 20 latency 1ms"),
		Undo:        script("tc qdisc del dev {dev} root"),
	},
	{Name: "pod-link-deleted", Finding: "pod-link-deleted", Description: "a pod's interface is deleted on the host",
		Inject: script("ip link del {veth}"), Undo: recreatePods},
	{Name: "pod-neighbour", Finding: "pod-neighbour", Description: "somebody writes a neighbour entry for a pod",
		KeepAgent: true,
		Inject:    script("ip neigh replace {pod} lladdr 02:00:00:00:00:99 dev cni0 nud permanent"),
		Undo:      script("ip neigh del {pod} dev cni0")},
	{Name: "device-taken", Finding: "device-taken", Description: "a macvlan in passthru mode stands on the pods' bridge",
		KeepAgent: true,
		Inject:    script("ip link add link cni0 name taker type macvlan mode passthru"),
		Undo:      script("ip link del taker")},
	{Name: "pod-unplugged", Finding: "pod-unplugged", Description: "a pod's interface is taken off the bridge",
		Inject: script("ip link set {veth} nomaster")},
	{Name: "pod-link-down", Finding: "pod-link-down", Description: "a pod's interface is set down on the host",
		Inject: script("ip link set {veth} down")},
	{Name: "pod-port-disabled", Finding: "pod-port", Description: "the bridge's port of a pod is disabled",
		Inject: script("bridge link set dev {veth} state 0")},
	{Name: "pod-port-deaf", Finding: "pod-port", Description: "the bridge neither learns from a pod's port nor floods to it",
		Inject: script("bridge link set dev {veth} learning off flood off mcast_flood off bcast_flood off")},
	{Name: "pod-port-mtu", Finding: "pod-port", Description: "a pod's port gets an MTU of 1000",
		Inject: script("ip link set {veth} mtu 1000")},
}

// recreatePods makes the target's pods again, as a runtime does: in new namespaces. It makes all, so that they keep
// their order.
func recreatePods(ctx context.Context, v *Target) error {
	for _, pod := range v.Node.Pods() {
		if err := v.Node.DelPod(ctx, pod); err != nil {
			return err
		}
		if _, err := v.Node.AddPod(ctx, pod.Name); err != nil {
			return err
		}
	}
	return nil
}

// restoreUnderlay gives the interface back what it lost: with the link the kernel takes IPv6 addresses and all routes.
func restoreUnderlay(ctx context.Context, v *Target) error {
	errs := []error{run(ctx, v.Node, "ip link set %s up", v.Device)}
	for _, a := range v.Node.Underlay() {
		bits, router := 24, "192.168.33.1"
		if a.Is6() {
			bits, router = 64, "fd33::1"
		}
		errs = append(
			errs,
			run(ctx, v.Node, "ip addr replace %s/%d dev %s nodad", a, bits, v.Device),
			run(ctx, v.Node, "ip route replace default via %s dev %s", router, v.Device),
		)
	}
	return errors.Join(errs...)
}
