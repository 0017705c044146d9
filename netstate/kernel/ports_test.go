package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/netstatetest"
)

// podPort makes a pod's port as the plugin does, and returns it: the pod's end stays in the same namespace.
func podPort(t *testing.T, h netstatetest.Harness, name string, change func(*netstate.Port)) netstate.Port {
	t.Helper()
	mac, _ := netstate.ParseMAC("02:00:00:00:01:" + name[len(name)-2:])
	pod, _ := netstate.ParseMAC("0a:58:0a:f4:01:" + name[len(name)-2:])
	p := netstate.Port{Name: name, Bridge: "cni0", MTU: 1450, MAC: mac, Pod: pod, Hairpin: true, Up: true}
	if change != nil {
		change(&p)
	}
	run(t, h, fmt.Sprintf("ip link add %s mtu 1450 address %s group %d type veth peer name e%[1]s", name, mac, p.Group()),
		"ip link set e"+name+" up mtu 1450 address "+pod.String(), "ip link set "+name+" master cni0 up")
	k := h.Kernel.(*Kernel)
	l, err := k.nl.LinkByName(name)
	if err == nil {
		err = k.nl.LinkSetAlias(l, p.Alias())
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// withAddrs gives a port the addresses of a pod.
func withAddrs(p *netstate.Port) {
	*p = p.WithAddrs([]netip.Addr{netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:10:244:1::2")})
}

func run(t *testing.T, h netstatetest.Harness, commands ...string) {
	t.Helper()
	for _, c := range commands {
		if err := h.Command(c); err != nil {
			t.Fatal(err)
		}
	}
}

// portsWanted is a bridge with two pods' ports, as the agent wants them by what Interfaces reports.
func portsWanted(t *testing.T, h netstatetest.Harness, change func(*netstate.Port)) (netstate.State, [2]netstate.Port) {
	t.Helper()
	want := netstate.NewState(
		netstate.Bridge{Name: "cni0", MTU: 1450, MAC: netstate.MAC{0x0a, 0x58, 10, 244, 1, 1}, Up: true, Marked: true},
		netstate.Addr{Dev: "cni0", Prefix: netip.MustParsePrefix("10.244.1.1/24")})
	if err := h.Kernel.Apply(t.Context(), netstate.Diff(want, nil)); err != nil {
		t.Fatal(err)
	}
	ports := [2]netstate.Port{podPort(t, h, "veth02", change), podPort(t, h, "veth03", nil)}
	interfaces, err := h.Machine.Interfaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if i.Port.Name != "" {
			want.Add(i.Port)
			if i.Port.Locked {
				want.Add(netstate.BridgeFDB{Bridge: "cni0", MAC: i.Port.Pod, Port: i.Port.Name})
			}
		}
	}
	for _, p := range ports {
		if want[p.Key()] != p {
			t.Fatalf("the machine reports %v, want %v", want[p.Key()], p)
		}
	}
	settlePorts(t, h, want)
	return want, ports
}

// settlePorts applies twice at most, as after a device that was made again.
func settlePorts(t *testing.T, h netstatetest.Harness, want netstate.State) {
	t.Helper()
	var plan netstate.Plan
	for range 3 {
		have, err := h.Kernel.Observe(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if plan = netstate.Diff(want, have); len(plan) == 0 {
			return
		}
		if err := h.Kernel.Apply(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("the plan is not empty after two rounds:\n%s", plan)
}

// TestPortDrift alters one thing at a time of a pod's port: there is a hint, the plan names it, and it is put back.
func TestPortDrift(t *testing.T) {
	for _, test := range []struct{ commands, plan string }{
		{"ip link set veth02 nomaster", "unplugged"},
		{"ip link set veth02 down", " down"},
		{"ip link set veth02 mtu 1000", "mtu 1000"},
		{"ip link set veth02 address 02:00:00:00:00:77", "address 02:00:00:00:00:77"},
		{"ip link add br9 type bridge; ip link set veth02 master br9", "master br9"},
		{"ip link set veth02 mode dormant", "mode 1"},
		{"ip link set veth02 group 0", "group 0"},
		{"ip link set veth02 group 7", "group 7"},
		{"bridge link set dev veth02 state 0", "state 0"},
		{"bridge link set dev veth02 state 1", "state 1"},
		{"bridge link set dev veth02 learning off", "learning false"},
		{"bridge link set dev veth02 flood off", "flood 0"},
		{"bridge link set dev veth02 mcast_flood off", "mcast_flood 0"},
		{"bridge link set dev veth02 bcast_flood off", "bcast_flood 0"},
		{"bridge link set dev veth02 hairpin off", "02:00:00:00:01:02 up"},
		{"bridge link set dev veth02 isolated on", "isolated"},
		{"bridge link set dev veth02 locked on", "locked"},
		{"bridge link set dev veth02 neigh_suppress on", "neigh_suppress 1"},
		{"bridge link set dev veth02 vlan_tunnel on", "vlan_tunnel 1"},
		{"bridge link set dev veth02 guard on", "guard 1"},
		{"bridge link set dev veth02 mcast_router 0", "mcast_router 0"},
		{"bridge link set dev veth02 backup_port veth03", "backup_port"},
		{"bridge fdb replace 0a:58:0a:f4:01:02 dev veth03 master static", "fdb 0a:58:0a:f4:01:02 dev veth03 master cni0 static"},
		{"bridge fdb replace 0a:58:0a:f4:01:02 dev veth03 master permanent", "dev veth03 master cni0 permanent"},
		{"bridge fdb replace 0a:58:0a:f4:01:02 dev cni0 self permanent", "dev cni0 master cni0 permanent"},
	} {
		t.Run(test.commands, func(t *testing.T) {
			h := fresh(t)
			want, _ := portsWanted(t, h, withAddrs)
			hints := watchQuietly(t, h)
			run(t, h, strings.Split(test.commands, "; ")...)
			hinted(t, hints)
			have, err := h.Kernel.Observe(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}
			if plan := netstate.Diff(want, have); !strings.Contains(plan.String(), test.plan) {
				t.Fatalf("the plan is\n%swant a change of %q", plan, test.plan)
			}
			settlePorts(t, h, want)
		})
	}
}

// watchQuietly returns the hints of what happens from now on.
func watchQuietly(t *testing.T, h netstatetest.Harness) <-chan struct{} {
	t.Helper()
	hints, err := h.Kernel.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	netstatetest.Quiet(t, hints, 5*gather)
	return hints
}

func hinted(t *testing.T, hints <-chan struct{}) {
	t.Helper()
	select {
	case <-hints:
	case <-time.After(testwait.Limit):
		t.Fatal("no hint")
	}
}

// TestPortsPluggedAgain: a bridge that is made again, or renamed, gets its pods' ports back, with their settings.
func TestPortsPluggedAgain(t *testing.T) {
	for _, command := range []string{"ip link del cni0", "ip link set cni0 down; ip link set cni0 name renamed0"} {
		t.Run(command, func(t *testing.T) {
			h := fresh(t)
			want, ports := portsWanted(t, h, func(p *netstate.Port) { p.Hairpin, p.Isolated, p.Locked = false, true, true })
			run(t, h, strings.Split(command, "; ")...)
			settlePorts(t, h, want)
			have, err := h.Kernel.Observe(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range ports {
				if have[p.Key()] != p {
					t.Errorf("%v, want %v", have[p.Key()], p)
				}
			}
		})
	}
}

// TestPortsOfOthers: a port without the mark, of another bridge, or with an ifalias that somebody altered is nobody's
// that we know.
func TestPortsOfOthers(t *testing.T) {
	h := fresh(t)
	want, _ := portsWanted(t, h, nil)
	run(t, h, "ip link add other0 type veth peer name other0p", "ip link set other0 master cni0",
		"bridge link set dev other0 flood off", "bridge fdb replace 02:00:00:00:00:99 dev veth03 master static")
	podPort(t, h, "veth04", func(p *netstate.Port) { p.Bridge = "br9" })
	run(t, h, "ip link set veth04 nomaster")
	have, err := h.Kernel.Observe(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if plan := netstate.Diff(want, have); len(plan) > 0 {
		t.Errorf("the plan is\n%s", plan)
	}
	run(t, h, "ip link del veth02") // its pod went
	if have, err = h.Kernel.Observe(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if plan := netstate.Diff(want, have); len(plan) > 0 {
		t.Errorf("after a pod went, the plan is\n%s", plan)
	}
	gone := netstate.Plan{{Want: netstate.Port{Name: "veth02", Bridge: "cni0", MTU: 1450}}}
	if err := h.Kernel.Apply(context.Background(), gone); err != nil {
		t.Errorf("a port that went meanwhile: %v", err)
	}
}
