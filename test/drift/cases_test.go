//go:build soak

package drift

import (
	"fmt"
	"math/rand/v2"
	"regexp"
)

// known are alterations that once stayed unseen, or whose repair cut pods off: a regular expression for the move, and
// one for the labs that have it. DRIFT_MOVE=known makes each of them. The generator has to find them all.
var known = []struct{ move, lab string }{
	// Files.
	{`rm -f \S*subnet.env`, ""},
	{`rm -f \S*checkpoint.json$`, ""},
	{`: >\S*checkpoint.json`, ""},
	{`chmod 000 \S*subnet.env`, ""},
	{`chmod 666 \S*subnet.env`, ""},
	{`chmod (000|666) \S*checkpoint.json`, ""},
	{`mv \S* \S*.other; sleep`, ""},
	// Parameters.
	{`echo 0 >\S*ipv4/conf/flannel.1/forwarding`, "vxlan"},
	{`echo 8 >\S*ipv4/conf/cni0/arp_ignore`, ""},
	{`echo 1 >\S*ipv6/conf/cni0/disable_ipv6`, ""},
	{`echo \d+ >\S*neigh/cni0/`, ""},
	// Attributes of devices, entries and ports.
	{`dev flannel.1 type vxlan ttl 3`, "vxlan"},
	{`ip link set dev cni0 arp off`, ""},
	{`bridge link set dev veth\S* state 0`, ""},
	{`bridge link set dev veth\S* learning off flood off; bridge fdb del`, ""},
	{`ip neigh replace \S* lladdr \S* dev cni0 nud permanent`, ""},
	{`ip neigh replace \S* lladdr \S* dev flannel.1 nud stale`, "vxlan"},
	{`ip addr add \S* dev cni0.*address beside|address beside.*ip addr add \S* dev cni0`, ""},
	{`ip link set dev eth1 mtu 1400`, ""},
	// The connected route of the own subnet, and ours in other tables.
	{`ip -4 route del \S* dev cni0|route deleted of route unicast node1 IPv4 .0/24 dev cni0`, ""},
	{`route in place of route unicast node1 IPv4 .0/24 dev cni0: ip -4 route replace blackhole`, ""},
	{`route mtu of route unicast node1 IPv4 .0/24 dev cni0`, ""},
	{`proto 116 table local`, ""},
	{`proto 116 table 100`, ""},
	// Devices that go.
	{`ip link set dev cni0 name renamed0`, ""},
	{`ip link del dev cni0`, ""},
	{`ip link set dev flannel.1 netns driftaway`, "vxlan"},
	{`ip link set dev cni0 address`, ""},
	// Rules.
	{`hook forward priority 9; policy drop`, "nftables"},
	{`nft rename chain`, "nftables"},
	{`flags dormant`, "nftables"},
	{`iptables -t \S* -E`, "iptables"},
}

// knownMoves returns one move for each known alteration of this lab. Each is looked for when its turn comes, as a lab
// that was made anew has other addresses.
func (r *run) knownMoves(yield func(move) bool) {
	for _, k := range known {
		if !regexp.MustCompile(k.lab).MatchString(r.name) {
			continue
		}
		all := r.space.all(regexp.MustCompile(k.move))
		if len(all) == 0 {
			r.Errorf("the generator does not find %s", k.move)
			continue
		}
		if !yield(all[0]) {
			return
		}
	}
}

// matching returns the moves that were asked for by a regular expression, in a random order.
func (r *run) matching(yield func(move) bool) {
	for _, i := range rand.New(rand.NewPCG(r.seed, 0)).Perm(len(r.space.all(r.only))) {
		if all := r.space.all(r.only); i < len(all) && !yield(all[i]) {
			return
		}
	}
	for n := 1; n < 20_000; n++ { // also those that are no setter's
		if m := r.draw(n); m.send != nil && r.only.MatchString(m.String()) && !yield(m) {
			return
		}
	}
}

// draw returns move number n. Each has random numbers of its own, so that it can be made alone.
func (r *run) draw(n int) move {
	m := r.space.draw(rand.New(rand.NewPCG(r.seed, uint64(n))))
	m.number = n
	return m
}

// again is the command that makes a move again.
func (r *run) again(m move) string {
	which := fmt.Sprint(m.number)
	if m.number == 0 {
		which = "'^" + regexp.QuoteMeta(m.attr+" of "+m.object) + ":'"
	}
	return fmt.Sprintf("make drift DRIFT_SEED=%d DRIFT_LAB=%s DRIFT_MOVE=%s", r.seed, r.name, which)
}
