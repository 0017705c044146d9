package eval

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

// cut is something that may keep a pod from the outside. In its commands and its object $OUT stands for the address outside,
// $POD, $SUBNET and $CLUSTER for whose packets it may be about, $WHO for one of these, $VIA for the pod's gateway,
// $ROUTER for the node's, $SEG for the underlay's network without its last part, $F and $IP for the family as ip and nft call
// it, $TABLES for iptables of the family, and $A, $B for drawn words.
type cut struct {
	name, place, do, undo string
	object                string // of the first finding; empty: it is harmless
	a, b                  []string
	only                  netstate.Family // 0: it is of both
	noAgent               bool            // an agent repairs it
	passes                bool            // what a node sends in the name of a pod does not meet it, or is not answered as a pod's packets are
}

const (
	strange = "nft 'add table $IP site; add chain $IP site c { type filter hook $A priority $B; }; add rule $IP site c "
	heal    = "nft delete table $IP site"
	rule    = "rule $IP site c handle 2"
)

// cuts are a grammar: each is drawn with words and a family.
var cuts = []cut{
	{name: "nothing", place: "node1", do: "true", undo: "true"},
	{name: "the pod's default route", place: "node1/pod1", do: "ip $F route del default", undo: "ip $F route add default via $VIA dev eth0 proto 116",
		object: "is missing, and there is no default that takes it"},
	{name: "the pod's gateway", place: "node1/pod1", do: "ip $F route replace default via $SUBNETX dev eth0", object: "route default via $SUBNETX dev eth0",
		undo: "ip $F route del default; ip $F route add default via $VIA dev eth0 proto 116"},
	{name: "a firewall in the pod", place: "node1/pod1", do: strange + "$IP daddr $OUT drop'", undo: heal, object: rule, a: []string{"output", "postrouting"}, b: []string{"-150", "0", "50"}},
	{name: "the node's default route", place: "node1", do: "ip $F route del default", undo: "ip $F route add default via $ROUTER dev eth1", object: "is missing, and there is no default that takes it"},
	{name: "forwarding of the way back", place: "node1", do: "sysctl -qw net.ipv4.conf.eth1.forwarding=0", undo: "sysctl -qw net.ipv4.conf.eth1.forwarding=1",
		object: "sysctl net.ipv4.conf.eth1.forwarding = 0", only: netstate.IPv4},
	{name: "forwarding", place: "node1", do: "sysctl -qw net.ipv4.ip_forward=0", undo: "sysctl -qw net.ipv4.ip_forward=1", object: "ip_forward", only: netstate.IPv4, noAgent: true},
	{name: "what is forwarded", place: "node1", do: strange + "oifname eth1 $IP saddr $WHO drop'", undo: heal, object: rule, a: []string{"forward"}, b: []string{"-150", "0", "10"}},
	{name: "what is rejected", place: "node1", do: strange + "$IP saddr $WHO $IP daddr $OUT reject'", undo: heal, object: rule, a: []string{"forward"}, b: []string{"-150", "0", "10"}},
	{name: "iptables", place: "node1", do: "$TABLES -I FORWARD -s $WHO ! -d $CLUSTER -j $A", undo: "$TABLES -D FORWARD -s $WHO ! -d $CLUSTER -j $A", object: "-A FORWARD -s ", a: []string{"DROP", "REJECT"}},
	{name: "a rule of routing", place: "node1", do: "ip $F rule add pref 900 to $OUT $A", undo: "ip $F rule del pref 900", object: "policy rule 900: from all to $OUT", a: []string{"blackhole", "unreachable", "prohibit"}},
	{name: "a table of routes", place: "node1", do: "ip $F rule add pref 900 from $SUBNET to $OUT lookup 77; ip $F route add $A default table 77", undo: "ip $F rule del pref 900; ip $F route flush table 77",
		object: "policy rule 900: from $SUBNET", a: []string{"blackhole", "unreachable"}},
	{name: "a route", place: "node1", do: "ip $F route add $A $OUT", undo: "ip $F route del $A $OUT", object: "route $A $OUT", a: []string{"blackhole", "unreachable", "prohibit"}},
	{name: "before the translation", place: "node1", do: strange + "$IP saddr $WHO $IP daddr $OUT drop'", undo: heal, object: rule, a: []string{"prerouting", "postrouting"}, b: []string{"-300", "50"}},
	{name: "after the translation", place: "node1", do: strange + "oifname eth1 $IP daddr $OUT drop'", undo: heal, object: rule, a: []string{"postrouting"}, b: []string{"150", "300"}},
	{name: "what comes back", place: "node1", do: strange + "$IP saddr $OUT drop'", undo: heal, object: rule, a: []string{"prerouting", "forward"}, b: []string{"-300", "-150", "0"}},
	{name: "masquerading", place: "node1", do: "nft delete table $IP flannel-$NUM", undo: "true", object: "", noAgent: true},
	{name: "connections that are not tracked", passes: true, place: "node1", do: strange + "$IP daddr $OUT notrack'", undo: heal, object: rule, a: []string{"prerouting"}, b: []string{"-300"}},
	{name: "another source", place: "node1", do: "nft 'add table $IP site; add chain $IP site c { type nat hook postrouting priority 50; }; add rule $IP site c $IP daddr $OUT snat to $NOBODY'", undo: heal, object: rule},
	{name: "another destination", passes: true, place: "node1", do: "nft 'add table $IP site; add chain $IP site c { type nat hook prerouting priority -110; }; add rule $IP site c $IP daddr $OUT dnat to $NOBODY'", undo: heal, object: rule},
	{name: "the reverse path", place: "node1", only: netstate.IPv4,
		do:   strange + "iifname cni0 $IP daddr $OUT meta mark set 7'; ip link add rp0 type veth peer name rp1; ip link set rp0 up; ip link set rp1 up; ip route add default via $ROUTER dev eth1 table 88; ip rule add pref 800 fwmark 7 lookup 88; ip route add $OUT dev rp0; sysctl -qw net.ipv4.conf.eth1.rp_filter=1",
		undo: heal + "; ip rule del pref 800; ip route flush table 88; ip link del rp0; sysctl -qw net.ipv4.conf.eth1.rp_filter=0", object: "sysctl net.ipv4.conf.eth1.rp_filter = 1", a: []string{"prerouting"}, b: []string{"-140"}},
	{name: "a next hop that is not there", place: "node1", do: "ip $F route add $OUT via $NEIGHBOUR", undo: "ip $F route del $OUT via $NEIGHBOUR", object: "neighbour $NEIGHBOUR dev eth1 does not answer"},
	{name: "the router's MAC", place: "node1", do: "ip neigh replace $ROUTER lladdr 02:00:00:00:77:77 nud permanent dev eth1", undo: "ip neigh del $ROUTER dev eth1; ping -c 1 $ROUTER", object: "lladdr 02:00:00:00:77:77"},
	{name: "a default route through another device", place: "node1", do: "ip link add vx type veth peer name vy; ip link set vx up; ip link set vy up; ip addr add 169.254.7.7/16 dev vx; ip route add default via $ROUTER dev eth1 metric 300; ip route del default metric 0; ip route add default dev vx metric 200",
		undo: "ip link del vx; ip route add default via $ROUTER dev eth1; ip route del default metric 300", object: "dev vx", only: netstate.IPv4},
	{name: "the TTL", passes: true, place: "node1", do: strange + "iifname cni0 $IP daddr $OUT $IP $TTL set 1'", undo: heal, object: rule, a: []string{"prerouting"}, b: []string{"-150"}},
	{name: "a queue", place: "node1", do: "tc qdisc add dev eth1 root pfifo limit 0; sleep 0.1", undo: "tc qdisc del dev eth1 root", object: "qdisc eth1"},
	{name: "a masquerading of somebody else's", place: "node1", do: "nft 'add table $IP site; add chain $IP site c { type nat hook postrouting priority 50; }; add rule $IP site c oifname eth1 masquerade'", undo: heal},
	{name: "a host that answers no pings", passes: true, place: "outside", do: "nft 'add table inet site; add chain inet site c { type filter hook input priority 0; }; add rule inet site c icmpv6 type echo-request drop; add rule inet site c icmp type echo-request drop'", undo: "nft delete table inet site"},
	{name: "a router that answers nobody", place: "underlay", do: "nft 'add table inet site; add chain inet site c { type filter hook input priority 0; }; add rule inet site c ct state new icmpv6 type != { nd-neighbor-solicit, nd-neighbor-advert } drop; add rule inet site c meta nfproto ipv4 drop'", undo: "nft delete table inet site"},
}

// outsideLab is a lab from which pods are cut off.
type outsideLab struct {
	*testing.T
	*lab.Lab

	program string
	random  *rand.Rand
}

// TestOutside: what cuts pods off from the outside, and no pod from another. Whether it does the pod says itself, by a ping
// from its namespace. The doctor has to name the place and the object, with the whole lab before it, and as root on the node;
// what is harmless is no finding. The words and families are drawn, and a third of the cuts, with TWILL_ALL all; TWILL_SEED
// repeats a run.
func TestOutside(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if text := os.Getenv("TWILL_SEED"); text != "" {
		_, err := fmt.Sscan(text, &seed)
		check(t, err)
	}
	t.Logf("TWILL_SEED=%d", seed)
	o := upOutside(t, lab.Spec{Name: "doctorout", Backend: "vxlan", Family: lab.Dual, Store: lab.File, Nodes: 2, Pods: 1})
	o.random = rand.New(rand.NewPCG(seed, 0))
	t.Run("trace", func(t *testing.T) {
		at := o
		at.T = t
		at.traces()
	})
	for i, c := range cuts {
		if !everywhere() && (i+int(seed%3))%3 != 0 {
			continue
		}
		family := o.Spec().Families()[o.random.IntN(2)]
		if c.only != 0 {
			family = c.only
		}
		t.Run(fmt.Sprintf("%s, %s", c.name, family), func(t *testing.T) {
			at := o
			at.T = t
			at.try(c, family)
		})
	}
}

func upOutside(t *testing.T, spec lab.Spec) outsideLab {
	l := labtest.StartDefault(t, spec)
	_, err := l.Converge(t.Context(), testwait.Limit)
	check(t, err)
	return outsideLab{T: t, Lab: l, program: filepath.Join(labtest.BinDir(t), "twillctl")}
}

// try injects what may cut a pod off, asks the pod, and then the doctor.
func (o outsideLab) try(c cut, family netstate.Family) {
	fill := o.words(c, family)
	at, err := o.Find(c.place)
	check(o.T, err)
	run := func(command string) {
		if _, err := at.Exec(o.Context(), "sh", "-ec", fill.Replace(command)); err != nil {
			o.Errorf("%s: %v", fill.Replace(command), err)
		}
	}
	n := o.Nodes()[0]
	if c.noAgent {
		check(o.T, n.KillAgent())
	}
	run(c.do)
	defer func() {
		run(c.undo)
		if c.noAgent {
			check(o.T, n.StartAgent(o.Context()))
		}
		testwait.Nil(o.T, "the pod reaches the outside again", func() error { return o.ping(family) })
	}()
	lost := o.ping(family) != nil
	if lost { // not for the busy machine's sake
		lost = o.ping(family) != nil
	}
	if isHarmless := c.object == "" && !c.noAgent; lost == isHarmless && c.place != "outside" {
		o.Fatalf("lost is %v: %s", lost, fill.Replace(c.do))
	}
	isFault := lost && c.place != "outside"
	o.judge(c, fill, isFault, firstOf(o.survey()))
	o.judge(c, fill, isFault, o.diagnose("--outside", fill.Replace("$OUT")).Findings)
	if agents := o.diagnose(asAgent, "--outside", fill.Replace("$OUT")); agents.Failed() != isFault && c.place != "node1/pod1" && !c.passes {
		o.Errorf("%s: an agent finds %+v", fill.Replace(c.do), agents.Findings)
	}
}

func firstOf(s doctor.Survey) []doctor.Finding {
	if s.First == nil {
		return nil
	}
	return []doctor.Finding{*s.First}
}

// judge checks that the first finding is the fault, or that there is none.
func (o outsideLab) judge(c cut, fill *strings.Replacer, isFault bool, found []doctor.Finding) {
	what, object := fill.Replace(c.do), fill.Replace(c.object)
	switch {
	case !isFault && len(found) > 0:
		o.Errorf("%s: a false alarm: %+v", what, found)
	case !isFault:
	case len(found) == 0:
		o.Errorf("%s: want %q at %s, got nothing", what, object, c.place)
	default:
		f := found[0]
		isPlace := f.Place == c.place || strings.HasPrefix(c.place, "node1/") && strings.HasPrefix(f.Place, "node1/veth")
		if !isPlace || !strings.Contains(f.Object+" "+f.Actual, object) || object == "" && f.ID != "masquerade-missing" {
			o.Errorf("%s: want %q at %s, got %+v", what, object, c.place, f)
		}
	}
}

// words fills in commands.
func (o outsideLab) words(c cut, family netstate.Family) *strings.Replacer {
	of := func(all []string) string {
		if len(all) == 0 {
			return ""
		}
		return all[o.random.IntN(len(all))]
	}
	n, pod := o.Nodes()[0], o.Nodes()[0].Pods()[0].Addr(family).String()
	i := slices.IndexFunc(n.Subnets(), func(s netip.Prefix) bool { return netstate.FamilyOf(s.Addr()) == family })
	subnet := n.Subnets()[i]
	_, outside := o.Outside()
	words := []string{"$F", "-4", "$IP", "ip", "$TABLES", "iptables", "$TTL", "ttl", "$NUM", "ipv4", "$OUT", outside[0].String(), "$ROUTER", "192.168.33.1", "$NEIGHBOUR", "192.168.33.77",
		"$NOBODY", "198.18.7.7", "$CLUSTER", "10.244.0.0/16"}
	if family == netstate.IPv6 {
		words = []string{"$F", "-6", "$IP", "ip6", "$TABLES", "ip6tables", "$TTL", "hoplimit", "$NUM", "ipv6", "$OUT", outside[1].String(), "$ROUTER", "fd33::1", "$NEIGHBOUR", "fd33::77",
			"$NOBODY", "2001:db8:77::7", "$CLUSTER", "fd00:244::/56"}
	}
	words = append(words, "$SUBNETX", subnet.Addr().Next().Next().Next().Next().Next().Next().String(), "$SUBNET", subnet.String(), "$VIA", subnet.Addr().Next().String(),
		"$POD", pod, "$A", of(c.a), "$B", of(c.b))
	words = append(words, "$WHO", of([]string{pod, subnet.String(), words[slices.Index(words, "$CLUSTER")+1]}))
	return strings.NewReplacer(words...)
}

// ping asks the pod itself.
func (o outsideLab) ping(family netstate.Family) error {
	_, outside := o.Outside()
	i := slices.IndexFunc(outside, func(a netip.Addr) bool { return netstate.FamilyOf(a) == family })
	_, err := o.Nodes()[0].Pods()[0].Ping(o.Context(), host.Ping{To: outside[i], Timeout: pingLimit})
	return err
}

// survey has the doctor look at the whole lab.
func (o outsideLab) survey(args ...string) (s doctor.Survey) {
	cmd := exec.CommandContext(o.Context(), o.program, append([]string{"doctor", "--probe", "--lab", o.Name(), "-o", "json"}, args...)...)
	cmd.Env = append(os.Environ(), "TWILL_BIN_DIR="+filepath.Dir(o.Spec().Programs.Agent))
	out, _ := cmd.Output() // exits 1 with findings
	if err := json.Unmarshal(out, &s); err != nil {
		o.Fatalf("%v: %s", err, out)
	}
	return s
}

// diagnose has it look as root on the node, or with the rights of an agent.
func (o outsideLab) diagnose(args ...string) (d doctor.Diagnosis) {
	n := o.Nodes()[0]
	command := []string{o.program, "doctor", "--probe", "-o", "json", "--checkpoint-file", n.CheckpointFile(), "--subnet-file", n.SubnetFile(),
		"--cni-cache-dir", n.CNICache(), "--cni-conf-dir", n.Dir(), "--cni-bin-dir", filepath.Dir(o.Spec().Programs.Plugin)}
	if len(args) > 0 && args[0] == asAgent {
		command, args = append([]string{"setpriv", "--bounding-set=-all,+net_admin,+net_raw,+dac_override"}, command...), args[1:]
	}
	out, err := n.Exec(o.Context(), append(command, args...)...)
	if bad := json.Unmarshal([]byte(out), &d); bad != nil {
		o.Fatalf("%v, %v: %s", bad, err, out)
	}
	return d
}

// asAgent has diagnose do without the right to enter pods.
const asAgent = "as an agent"

// TestOutsideOfHealthyLabs: no backend has a false alarm, neither has an agent, which sends in the names of its pods.
func TestOutsideOfHealthyLabs(t *testing.T) {
	t.Parallel()
	for i, spec := range []lab.Spec{{Backend: "host-gw", Family: lab.Dual}, {Backend: "udp", Family: lab.IPv4},
		{Backend: "wireguard", Family: lab.IPv6}, {Backend: "aws-vpc", Family: lab.IPv4}, {Backend: "vxlan", Family: lab.Dual, NetworkPolicy: true},
		{Backend: "vxlan", Family: lab.IPv4, Sites: map[string]lab.Site{"": {NAT: true}}},
		{Backend: "vxlan", Family: lab.IPv4, Sites: map[string]lab.Site{"": {Vagrant: true}}}} {
		spec.Name, spec.Store, spec.Nodes, spec.Pods = fmt.Sprintf("outwell%d", i), lab.File, 2, 1
		t.Run(fmt.Sprintf("%s %s %d", spec.Backend, spec.Family, i), func(t *testing.T) {
			o := upOutside(t, spec)
			o.mustBeWell("")
		})
	}
}

// TestOutsideIsSaid: what is no fault and is to be known.
func TestOutsideIsSaid(t *testing.T) {
	t.Parallel()
	o := upOutside(t, lab.Spec{Name: "outsaid", Backend: "vxlan", Family: lab.IPv4, Store: lab.File, Nodes: 2, Pods: 1,
		Sites: map[string]lab.Site{"": {Flags: []string{"--ip-masq=false"}}}})
	router, err := o.Find("underlay")
	check(t, err)
	run := func(h host.Host, command string) {
		_, err := h.Exec(t.Context(), "sh", "-ec", command)
		check(t, err)
	}
	_, outside := o.Outside()
	if all, here := o.survey(), o.diagnose("--outside", outside[0].String()); all.First == nil || all.First.Place != "underlay" || len(here.Findings) != 1 ||
		here.Findings[0].ID != "outside-unanswered" || len(here.Notes) != 1 || !strings.Contains(here.Notes[0], "answers neither") {
		t.Errorf("nobody knows the pods' network: got %+v and %+v", all.First, here)
	}
	for _, n := range o.Nodes() {
		run(router, fmt.Sprintf("ip route add %s via %s", n.Subnets()[0], n.Underlay()[0]))
	}
	o.mustBeWell("")
	for _, n := range o.Nodes() {
		run(n.Host, "ip route del default")
	}
	o.mustBeWell("route")
}

// mustBeWell checks that nobody finds anything, and what is said.
func (o outsideLab) mustBeWell(says string) {
	o.Helper()
	all, here := o.survey(), o.diagnose()
	agents := o.diagnose(asAgent)
	if all.Failed() || here.Failed() || agents.Failed() || !here.Probed || !agents.Probed {
		o.Errorf("a false alarm: %+v; %+v; %+v", all.First, here.Findings, agents.Findings)
	}
	for _, notes := range [][]string{all.Probes.Notes, here.Notes, agents.Notes} {
		if text := strings.Join(notes, "\n"); (text != "") != (says != "") || !strings.Contains(text, says) {
			o.Errorf("want %q said, got %q", says, text)
		}
	}
}

// traces follows packets to the outside: through the lab, and as the node sees it.
func (o outsideLab) traces() {
	n := o.Nodes()[0]
	_, outside := o.Outside()
	for _, family := range o.Spec().Families() {
		pod, out := n.Pods()[0].Addr(family).String(), outside[0].String()
		if family == netstate.IPv6 {
			out = outside[1].String()
		}
		trace := func() (all [2]doctor.Trace) {
			read := func(i int, out string, err error) {
				if bad := json.Unmarshal([]byte(out), &all[i]); bad != nil {
					o.Fatalf("%v, %v: %s", bad, err, out)
				}
			}
			data, err := exec.CommandContext(o.Context(), o.program, "trace", "--lab", o.Name(), "node1/pod1", out, "-o", "json").Output()
			read(0, string(data), err)
			text, err := n.Exec(o.Context(), o.program, "trace", pod, out, "-o", "json", "--checkpoint-file", n.CheckpointFile(), "--subnet-file", n.SubnetFile())
			read(1, text, err)
			return all
		}
		for i, got := range trace() {
			isMasked := slices.ContainsFunc(got.Forward, func(s doctor.Step) bool { return s.Place == "masquerading" && strings.Contains(s.Entry, "of eth1") })
			if got.Failed() || got.Probes.Sent != 1 || !isMasked || len(got.Back) == 0 {
				o.Errorf("%d, %s: want a way out, got %+v", i, family, got)
			}
		}
		flag := "-" + strings.TrimPrefix(family.String(), "IPv")
		_, err := n.Exec(o.Context(), "ip", flag, "route", "add", "unreachable", out)
		check(o.T, err)
		for i, got := range trace() {
			isNamed := len(got.Lost) > 0 && got.Lost[0].Place == "node1" && strings.Contains(got.Lost[0].Object, "route unreachable "+out)
			if s := got.Stopped; s == nil || s.Finding != "outside-unrouted" || !isNamed {
				o.Errorf("%d, %s: want it to stop at the route, got %+v", i, family, got)
			}
		}
		_, err = n.Exec(o.Context(), "ip", flag, "route", "del", "unreachable", out)
		check(o.T, err)
	}
}
