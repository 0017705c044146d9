package unusual

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	bpflink "github.com/cilium/ebpf/link"

	"github.com/twill-net/twill/doctor/locate"
)

// deviceInjections alter devices; each makes one object.
var deviceInjections = []struct {
	kind          locate.Kind
	command, text string
}{
	{locate.Link, "ip link set unusual1 arp off", "unusual1: NOARP"},
	{locate.Link, "ip link set unusual1 multicast off", "unusual1: no MULTICAST"},
	{locate.Link, "ip link set unusualbr promisc on", "unusualbr: PROMISC"},
	{locate.Link, "ip link set unusual1 allmulticast on", "unusual1: ALLMULTI"},
	{locate.Link, "ip link set unusual1 group 7", "unusual1: group 7"},
	{locate.Link, "ip link set unusual1 gso_max_size 2000", "unusual1: gso_max_size 2000"},
	{locate.Link, "ip link set unusual1 gro_max_size 2000", "unusual1: gro_max_size 2000"},
	{locate.Address, "ip addr add 10.244.2.9/32 dev lo", "inet 10.244.2.9/32 dev lo"},
	{locate.Address, "ip addr add 10.244.1.1/32 dev unusual1", "inet 10.244.1.1/32 dev unusual1 (on unusualbr, too)"},
	{locate.Address, "ip addr add fd00:244:9::1/64 dev unusualbr nodad preferred_lft 0", "inet6 fd00:244:9::1/64 dev unusualbr deprecated"},
	{locate.Address, "ip route del 10.244.1.0/24 dev unusualbr", "inet 10.244.1.1/24 dev unusualbr: no route 10.244.1.0/24 dev unusualbr"},
	{locate.Address, "ip -6 route del fd00:244:1::/64 dev unusualbr", "inet6 fd00:244:1::1/64 dev unusualbr: no route fd00:244:1::/64 dev unusualbr"},
	{locate.Address, "ip route del local 10.244.1.1 dev unusualbr table local", "inet 10.244.1.1/24 dev unusualbr: no route local 10.244.1.1"},
	{locate.Address, "ip -6 route del local fd00:244:1::1 dev unusualbr table local", "inet6 fd00:244:1::1/64 dev unusualbr: no route local fd00:244:1::1"},
	{locate.BridgePort, "ip link set unusual1 type bridge_slave isolated on", "unusual1 of unusualbr: isolated on"},
	{locate.BridgePort, "bridge link set dev unusual1 learning off", "unusual1 of unusualbr: learning off"},
	{locate.BridgePort, "bridge link set dev unusual1 flood off", "unusual1 of unusualbr: flood off"},
	{locate.BridgePort, "bridge link set dev unusual1 mcast_flood off", "unusual1 of unusualbr: mcast_flood off"},
	{locate.BridgePort, "bridge link set dev unusual1 bcast_flood off", "unusual1 of unusualbr: bcast_flood off"},
	{locate.BridgePort, "bridge link set dev unusual1 neigh_suppress on", "unusual1 of unusualbr: neigh_suppress on"},
	{locate.BridgePort, "bridge link set dev unusual1 hairpin on", "unusual1 of unusualbr: hairpin on"},
	{locate.BridgePort, "bridge link set dev unusual1 guard on", "unusual1 of unusualbr: guard on"},
	{locate.BridgePort, "bridge link set dev unusual1 locked on", "unusual1 of unusualbr: locked on"},
	{locate.BridgePort, "bridge link set dev unusual1 state 0", "unusual1 of unusualbr: state disabled"},
	{locate.BridgePort, "ip link set unusual1 type bridge_slave group_fwd_mask 8", "unusual1 of unusualbr: group_fwd_mask 8"},
	{locate.BridgePort, "ip link set unusualbr type bridge mcast_snooping 0", "unusualbr: mcast_snooping 0"},
	{locate.BridgePort, "ip link set unusualbr type bridge ageing_time 0", "unusualbr: ageing_time 0"},
	{locate.BridgePort, "ip link set unusualbr type bridge group_fwd_mask 8", "unusualbr: group_fwd_mask 8"},
	{locate.BridgePort, "ip link set unusualbr type bridge nf_call_iptables 1", "unusualbr: nf_call_iptables 1"},
	{locate.BridgePort, "ip link set unusualbr type bridge no_linklocal_learn 1", "unusualbr: no_linklocal_learn 1"},
	{locate.FDB, "bridge fdb add 02:00:00:00:00:77 dev unusual1 master static", "02:00:00:00:00:77 dev unusual1 master unusualbr static"},
	{locate.FDB, "bridge fdb add 02:00:00:00:00:78 dev unusualbr self local", "02:00:00:00:00:78 dev unusualbr master unusualbr permanent"},
	{locate.FDB, "bridge fdb add 02:00:00:00:00:79 dev unusual1 master local", "02:00:00:00:00:79 dev unusual1 master unusualbr permanent"},
	{locate.Qdisc, "tc qdisc add dev unusual1 root handle 1: tbf rate 1mbit burst 10k latency 1ms", "unusual1: tbf 1: root"},
	{locate.Qdisc, "tc qdisc add dev unusual1 clsact", "unusual1: clsact ffff: clsact"},
}

func TestDevices(t *testing.T) {
	inNamespace(t, func() {
		bridged(t)
		for _, i := range deviceInjections {
			inject(t, i.kind, i.command, i.text, "")
		}
	})
}

// TestConsequences: one command may alter more than one thing.
func TestConsequences(t *testing.T) {
	inNamespace(t, func() {
		bridged(t)
		for _, c := range []struct {
			command string
			want    []string
		}{
			{"ip link set unusual1 mtu 600", []string{"unusual1: mtu 600"}},
			{"ip link set unusual1 down", []string{"unusual1: down"}},
			{"ip link add link unusualbr name unusualmv address 02:00:00:00:00:55 type macvlan", []string{"unusualmv@unusualbr: macvlan"}},
			{"ip addr add 10.244.1.1/24 dev unusual1 noprefixroute", []string{"inet 10.244.1.1/24 dev unusual1 (on unusualbr, too)",
				"inet 10.244.1.1/24 dev unusual1: no route 10.244.1.0/24 dev unusual1"}},
			{"tc qdisc add dev unusual1 root handle 2: htb default 1 && ip link set unusual1 txqueuelen 1", // it had no queue
				[]string{"unusual1: htb 2: root", "unusual1: txqueuelen 1"}},
			{"ip link set lo down", []string{"lo: down"}},
			{"tc qdisc add dev unusual1 ingress && tc filter add dev unusual1 ingress pref 9 protocol ip u32 match ip dst 10.244.1.0/24 " +
				"action mirred egress redirect dev unusual2",
				[]string{"unusual1: filter ingress pref 9 u32 action mirred egress redirect dev unusual2", "unusual1: ingress ffff: ingress"}},
			{"tc qdisc add dev unusual2 clsact && tc filter add dev unusual2 egress pref 9 protocol ip u32 match u32 0 0 " +
				"action mirred egress mirror dev unusual1",
				[]string{"unusual2: filter egress pref 9 u32 action mirred egress mirror dev unusual1", "unusual2: clsact ffff: clsact"}},
			{"tc qdisc add dev unusual2 root handle 1: htb default 1 && tc filter add dev unusual2 parent 1: pref 9 protocol ip u32 match u32 0 0 flowid 1:7",
				[]string{"unusual2: filter parent 1: pref 9 u32", "unusual2: htb 1: root"}},
		} {
			before := list(t)
			if err := run(c.command); err != nil {
				t.Error(err)
				continue
			}
			made := without(list(t), before)
			for _, want := range c.want {
				if !strings.Contains(print(made), " "+want) {
					t.Errorf("%s:\n%swant %s", c.command, print(made), want)
				}
			}
			for _, o := range made {
				_ = run(o.Fix) // the last of them may be gone with another
			}
			settled(t)
			if left := without(list(t), before); len(left) > 0 {
				t.Errorf("%s: after the fixes:\n%s", c.command, print(left))
			}
		}
	})
}

// TestOtherEnd: a veth drops what is larger than its MTU, and the other end's is in another namespace.
func TestOtherEnd(t *testing.T) {
	inNamespace(t, func() {
		pods := bridged(t)
		if err := run(fmt.Sprintf("nsenter -t %d -n ip link set eth0 mtu 9000", pods[0])); err != nil {
			t.Fatal(err)
		}
		made := list(t)
		if len(made) != 1 || made[0].Text != "unusual1: mtu 1500" || made[0].Usual != "9000" {
			t.Errorf("%swant unusual1: mtu 1500", print(made))
		}
	})
}

// TestPrograms: BPF programs take packets without a rule.
func TestPrograms(t *testing.T) {
	inNamespace(t, func() {
		bridged(t)
		s, err := open()
		if err != nil {
			t.Fatal(err)
		}
		defer s.conn.Close()
		load := func(kind ebpf.ProgramType) *ebpf.Program {
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "unusual_drop", Type: kind, License: "GPL",
				Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { p.Close() })
			return p
		}
		tcx, err := bpflink.AttachTCX(bpflink.TCXOptions{Interface: s.byName("unusual1").index, Program: load(ebpf.SchedCLS),
			Attach: ebpf.AttachTCXIngress})
		if err != nil {
			t.Fatal(err)
		}
		defer tcx.Close()
		xdp, err := bpflink.AttachXDP(bpflink.XDPOptions{Interface: s.byName("unusual2").index, Program: load(ebpf.XDP),
			Flags: bpflink.XDPGenericMode})
		if err != nil {
			t.Fatal(err)
		}
		defer xdp.Close()
		made := print(list(t))
		for _, want := range []string{"unusual1: tcx ingress program unusual_drop", "unusual2: xdpgeneric program "} {
			if !strings.Contains(made, want) {
				t.Errorf("%swant %s", made, want)
			}
		}
	})
}
