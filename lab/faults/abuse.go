package faults

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
)

// abuseFaults are what other programs, and people, do to our devices and to the underlay: all heal by themselves, and
// the doctor has no finding of its own for them.
var abuseFaults = onIPv4([]Fault{
	{
		Name:        "vtep-renamed",
		Description: "the VXLAN device is renamed",
		Backends:    vxlanOnly,
		Inject:      race("link set {dev} down", "link set {dev} name mine"),
	},
	{Name: "vtep-enslaved", Description: "the VXLAN device is plugged into a bridge", Backends: vxlanOnly,
		Running: true, Inject: enslave},
	{
		Name:        "vtep-moved-away",
		Description: "the VXLAN device is moved to a namespace, which ends",
		Backends:    vxlanOnly,
		Inject:      moveAway,
	},
	{
		Name:        "vtep-recreated",
		Description: "somebody else makes the VXLAN device anew, with another MAC and learning",
		Backends:    vxlanOnly,
		Inject: race(
			"link del {dev}",
			"link add {dev} type vxlan id 1 dev {eth} dstport 8472 local {self}",
			"link set {dev} up",
		),
	},
	{Name: "vtep-other-port", Description: "a VXLAN device with another UDP port takes the name", Backends: vxlanOnly,
		Inject: race(
			"link add other type vxlan id 1 dev {eth} dstport 4789 local {self} nolearning",
			"link set {dev} down",
			"link set {dev} name mine",
			"link set other name {dev}",
		)},
	{Name: "vtep-other-kind", Description: "a bridge takes the VXLAN device's name", Backends: vxlanOnly,
		Inject: race(
			"link add other type bridge",
			"link set {dev} down",
			"link set {dev} name mine",
			"link set other name {dev}",
		)},
	{Name: "vtep-unmarked", Description: "the VXLAN device loses its mark and its MTU", Backends: vxlanOnly,
		Inject: batch("link set {dev} alias other", "link set {dev} mtu 1200")},
	{Name: "vtep-more-addresses", Description: "the VXLAN device gets two more addresses", Backends: vxlanOnly,
		Inject: batch("addr add 10.244.99.9/32 dev {dev}", "addr add 10.99.0.1/24 dev {dev}")},
	{
		Name:        "vtep-deleted-thrice",
		Running:     true,
		Description: "the VXLAN device is deleted three times, 100 ms apart",
		Backends:    vxlanOnly,
		Inject:      deleteThrice,
	},
	{
		Name:        "neighbours-flushed",
		Description: "all ARP entries of the VXLAN device are deleted",
		Backends:    vxlanOnly,
		Inject:      script("ip neigh flush dev {dev} nud permanent"),
	},
	{
		Name:        "neighbour-learned",
		Description: "a peer's ARP entry is no longer permanent, and wrong",
		Backends:    vxlanOnly,
		Inject:      script("ip neigh replace {vtep} lladdr 0e:00:00:00:00:66 dev {dev} nud stale"),
	},
	{Name: "fdb-other-port", Description: "a peer's FDB entry gets another UDP port", Backends: vxlanOnly,
		Inject: script("bridge fdb replace {mac} dev {dev} dst {at} port 4789 self permanent")},
	{
		Name:        "route-metric",
		Description: "the route to a peer is replaced by one of a higher metric",
		Backends:    vxlanOnly,
		Inject:      batch("route del {peer}", "route add {peer} via {vtep} dev {dev} onlink proto 116 metric 50"),
	},
	{Name: "route-appended", Description: "a second route to a peer is appended", Backends: vxlanOnly, Lossless: true,
		Inject: script("ip route append {peer} via 10.244.255.0 dev {dev} onlink")},
	{Name: "route-prepended", Description: "a second route to a peer is put before ours", Backends: vxlanOnly,
		Inject: script("ip route prepend {peer} via 10.244.255.0 dev {dev} onlink")},
	{
		Name:        "route-tos",
		Description: "a route to a peer for packets of one TOS is added",
		Backends:    vxlanOnly,
		Lossless:    true,
		Inject:      script("ip route add {peer} tos 0x10 via 10.244.255.0 dev {dev} onlink"),
	},
	{
		Name:        "route-other-device",
		Description: "the route to a peer leads out of the underlay",
		Backends:    vxlanOnly,
		Inject:      script("ip route replace {peer} dev {eth}"),
	},
	{
		Name:        "route-unowned",
		Description: "the route to a peer becomes another program's",
		Backends:    hostgwOnly,
		Lossless:    true,
		Inject:      script("ip route replace {peer} via {at} dev {eth} proto static"),
	},
	{
		Name:        "bridge-mac",
		Running:     true,
		Description: "cni0's MAC is changed",
		Inject:      script("ip link set cni0 address 0e:00:00:00:00:99"),
	},
	{Name: "tables-deleted", Description: "Twill's nft tables are deleted", Inject: deleteTables},
	{
		Name:        "chain-rule-added",
		Description: "a rule that drops is added to a chain of ours",
		Inject:      script("nft insert rule ip flannel-ipv4 forward counter drop"),
	},
	{
		Name:        "iptables-flushed",
		Description: "ip filter FORWARD is flushed, with a DROP policy",
		Inject:      script("iptables -w -F FORWARD", "iptables -w -P FORWARD DROP"),
	},
	{
		Name:        "iptables-restored",
		Running:     true,
		Description: "the DROP policy goes again",
		Inject:      script("iptables -w -P FORWARD ACCEPT"),
	},
	{
		Name:        "underlay-long-flap",
		Running:     true,
		Description: "the underlay's interface is down for a second",
		Inject:      flap(time.Second),
	},
	{Name: "underlay-second-address", Description: "the underlay's interface gets a second address", Lossless: true,
		Inject: script("ip addr add 192.168.33.221/24 dev {eth}")},
	{
		Name:        "underlay-first-address",
		Description: "and loses it again",
		Lossless:    true,
		Inject:      script("ip addr del 192.168.33.221/24 dev {eth}"),
	},
	{
		Name:        "underlay-mtu-lowered",
		Description: "the underlay's MTU is set to 1400",
		Inject:      script("ip link set {eth} mtu 1400"),
		Healed:      mtuIs(1400),
	},
	{
		Name:        "underlay-mtu-restored",
		Description: "and back to 1500",
		Inject:      script("ip link set {eth} mtu 1500"),
		Healed:      mtuIs(1500),
	},
	{Name: "default-route-moves", Description: "the default route moves to another gateway", Lossless: true,
		Inject: script("ip route replace default via 192.168.33.254 dev {eth}")},
	{
		Name:        "default-route-back",
		Description: "and back",
		Lossless:    true,
		Inject:      script("ip route replace default via 192.168.33.1"),
	},
	{
		Name:        "store-killed-during-drift",
		Running:     true,
		Description: "everything of Twill's is deleted while the store is down",
		Inject:      driftWithoutStore,
	},
})

// onIPv4 keeps faults, whose commands have IPv4 addresses, from labs of IPv6 alone.
func onIPv4(list []Fault) []Fault {
	for i := range list {
		list[i].IPv4 = true
	}
	return list
}

// race is a batch that the agent could be faster than, on a busy machine: it stands still meanwhile.
func race(lines ...string) func(context.Context, *Target) error {
	return func(ctx context.Context, v *Target) error {
		agent := v.Node.Agent()
		if err := agent.Signal(unix.SIGSTOP); err != nil {
			return err
		}
		return errors.Join(batch(lines...)(ctx, v), agent.Signal(unix.SIGCONT))
	}
}

// deleteTables deletes those of the families that the lab has.
func deleteTables(ctx context.Context, v *Target) error {
	out, err := v.Node.Exec(ctx, "nft", "list", "tables")
	if err != nil {
		return err
	}
	found := 0
	for line := range strings.Lines(out) {
		if words := strings.Fields(line); len(words) == 3 && strings.HasPrefix(words[2], "flannel-") {
			found++
			if err := run(ctx, v.Node, "nft delete table %s %s", words[1], words[2]); err != nil {
				return err
			}
		}
	}
	if found == 0 {
		return fmt.Errorf("%s has no table of Twill's among %q", v.Node.Name, out)
	}
	return nil
}

// enslave plugs the device in for a while. The bridge goes again: what stays would be somebody's.
func enslave(ctx context.Context, v *Target) error {
	if err := batch("link add fbr0 type bridge", "link set {dev} master fbr0")(ctx, v); err != nil {
		return err
	}
	if err := wait(ctx, 200*time.Millisecond); err != nil {
		return err
	}
	return script("ip link del fbr0")(ctx, v)
}

const elsewhere = "twill-fault"

func moveAway(ctx context.Context, v *Target) error {
	return script("ip netns add "+elsewhere, "ip link set {dev} netns "+elsewhere, "ip netns del "+elsewhere)(ctx, v)
}

func deleteThrice(ctx context.Context, v *Target) error {
	for range 3 {
		if err := script("ip link del {dev}")(ctx, v); err != nil {
			return err
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func flap(d time.Duration) func(context.Context, *Target) error {
	return func(ctx context.Context, v *Target) error {
		if err := script("ip link set {eth} down")(ctx, v); err != nil {
			return err
		}
		if err := wait(ctx, d); err != nil {
			return err
		}
		return script("ip link set {eth} up", "ip route replace default via 192.168.33.1")(ctx, v)
	}
}

// mtuIs reports whether pods' packets fit into the underlay's: the bridge, which has no more than its smallest port, and the
// VXLAN device if there is one.
func mtuIs(underlay int) func(context.Context, *Target) (bool, error) {
	return func(ctx context.Context, v *Target) (bool, error) {
		want := map[string]int{"cni0": underlay}
		if v.Lab.Spec().Backend == "vxlan" {
			want["cni0"], want[v.Overlay] = underlay-50, underlay-50
		}
		ports, err := v.Node.Exec(ctx, "ip", "-o", "link", "show", "master", "cni0")
		if err != nil {
			return false, err
		}
		for _, has := range linkMTU.FindAllStringSubmatch(ports, -1) {
			if mtu, err := strconv.Atoi(has[1]); err == nil {
				want["cni0"] = min(want["cni0"], mtu)
			}
		}
		for dev, mtu := range want {
			out, err := v.Node.Exec(ctx, "ip", "-o", "link", "show", dev)
			if err != nil || !strings.Contains(out, fmt.Sprintf(" mtu %d ", mtu)) {
				return false, err
			}
		}
		return true, nil
	}
}

// linkMTU matches what ip-link prints of a device's MTU.
var linkMTU = regexp.MustCompile(` mtu (\d+) `)

// driftWithoutStore: the agent needs no store to repair.
func driftWithoutStore(ctx context.Context, v *Target) error {
	if err := v.Lab.StopStore(ctx); err != nil {
		return err
	}
	lines := []string{"ip route flush proto 116", "nft flush ruleset"}
	if v.Lab.Spec().Backend == "vxlan" {
		lines = append(lines, "ip link del {dev}")
	}
	err := script(lines...)(ctx, v)
	if err == nil {
		err = reached(ctx, v.Node, v.Peer)
	}
	if again := v.Lab.StartStore(ctx); err == nil {
		err = again
	}
	return err
}

// reached waits for a ping from pod to pod.
func reached(ctx context.Context, from, to *lab.Node) (err error) {
	for range 50 {
		if _, err = from.Pods()[0].Ping(ctx, host.Ping{To: to.Pods()[0].Addrs[0], Timeout: 100 * time.Millisecond}); err == nil {
			return nil
		}
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("a pod of %s does not reach one of %s a second after the damage: %w", from.Name, to.Name, err)
}
