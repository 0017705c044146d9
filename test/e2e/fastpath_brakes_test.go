package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// brake is something that drops all packets at one place of the kernel's path.
type brake struct {
	what     string
	do, undo string // commands
	whole    bool   // it forbids the fast path to all pods
	passed   string // what the fast path's page says of it, where it does not stop an open connection; empty: it does
}

// The page's words for hooks that open connections pass by.
const (
	ofRules    = "rules of the hooks prerouting, forward and postrouting"
	ofBridge   = "rules of the family bridge at its hooks output, forward and postrouting"
	ofUnderlay = "with vxlan, netdev chains at the hook egress of the underlay"
)

// chainBrake is a chain of nf_tables that drops all.
func chainBrake(family, hook, dev, passed string) brake {
	at := hook
	if dev != "" {
		at += " device " + dev
	}
	return brake{"nftables " + family + " " + at, fmt.Sprintf("nft 'add table %s brake; add chain %s brake c { type filter hook %s priority 0; policy drop; }'",
		family, family, at), "nft delete table " + family + " brake", dev != "" && !strings.HasPrefix(dev, "veth"), passed}
}

// filterBrake is a filter of TC that drops all. The bytecode returns TC_ACT_SHOT.
func filterBrake(side, dev string) brake {
	return brake{"TC " + side + " of " + dev, fmt.Sprintf("tc qdisc add dev %s clsact 2>/dev/null || true; tc filter add dev %s %s pref 7 bpf bytecode '1,6 0 0 2' direct-action",
		dev, dev, side), fmt.Sprintf("tc filter del dev %s %s pref 7", dev, side), !strings.HasPrefix(dev, "veth"), ""}
}

// TestFastPathBrakes puts a brake under an open connection whose packets take the fast path, at each hook of the kernel's
// path: the connection stops, or the fast path's page names the hook. Where the brake is taken away, it goes on.
func TestFastPathBrakes(t *testing.T) {
	page, err := os.ReadFile("../../Documentation/fast-path.md")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(string(page)), " ")
	for _, command := range []string{"conntrack -D", "twillctl fastpath pause"} {
		if !strings.Contains(words, command) {
			t.Errorf("the page does not name the command %s", command)
		}
	}
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			c := cluster{t, labtest.Up(t, lab.Spec{Name: "brakes" + backend[:1], Backend: backend, Store: lab.File, Nodes: 2, Pods: 1, FastPath: true})}
			node := c.lab.Nodes()[1]
			veth := c.hostEnd(node)
			talk := c.talk(c.pod(1), c.pod(2))
			for _, b := range brakes(veth, backend) {
				if b.passed != "" && !strings.Contains(words, b.passed) {
					t.Errorf("%s: the page does not say %q", b.what, b.passed)
				}
				c.tryBrake(node, talk, b)
			}
			if haveTCX(node) {
				for side, at := range map[string]ebpf.AttachType{"ingress": ebpf.AttachTCXIngress, "egress": ebpf.AttachTCXEgress} {
					c.tryProgram(node, veth, talk, "TCX "+side, func(index int) (link.Link, error) {
						return link.AttachTCX(link.TCXOptions{Interface: index, Attach: at, Program: c.program(ebpf.SchedCLS, 2)})
					})
				}
			}
			c.tryProgram(node, veth, talk, "XDP", func(index int) (link.Link, error) {
				return link.AttachXDP(link.XDPOptions{Interface: index, Flags: link.XDPGenericMode, Program: c.program(ebpf.XDP, 1)})
			})
		})
	}
}

func brakes(veth, backend string) (all []brake) {
	overlay := "flannel.1"
	devs := []string{veth, "cni0", "eth1"}
	if backend == "vxlan" {
		devs = append(devs, overlay)
	}
	for _, dev := range devs {
		for _, side := range []string{"ingress", "egress"} {
			passed := ""
			if backend == "vxlan" && dev == "eth1" && side == "egress" {
				passed = ofUnderlay
			}
			all = append(all, chainBrake("netdev", side, dev, passed), filterBrake(side, dev))
		}
	}
	for _, family := range []string{"ip", "inet"} {
		all = append(all, chainBrake(family, "forward", "", ofRules), chainBrake(family, "postrouting", "", ofRules),
			brake{"nftables " + family + " prerouting", "nft 'add table " + family + " brake; add chain " + family + " brake c { type filter hook prerouting priority -300; }; " +
				"add rule " + family + " brake c tcp dport 7000 drop'", "nft delete table " + family + " brake", false, ofRules})
	}
	all = append(all, chainBrake("bridge", "prerouting", "", ""), chainBrake("bridge", "input", "", ""),
		chainBrake("bridge", "postrouting", "", ofBridge), chainBrake("bridge", "output", "", ofBridge),
		brake{"iptables raw", "iptables -t raw -I PREROUTING -p tcp --dport 7000 -j DROP", "iptables -t raw -D PREROUTING -p tcp --dport 7000 -j DROP", false, ofRules},
		brake{"iptables mangle", "iptables -t mangle -I FORWARD -j DROP", "iptables -t mangle -D FORWARD -j DROP", false, ofRules},
		brake{"iptables FORWARD", "iptables -I FORWARD -j DROP", "iptables -D FORWARD -j DROP", false, ofRules})
	return all
}

// haveTCX reports whether the kernel has it.
func haveTCX(n *lab.Node) bool {
	return n.Do(func() error {
		_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress})
		return err
	}) == nil
}

// program loads one that returns a number.
func (c cluster) program(kind ebpf.ProgramType, returns int32) *ebpf.Program {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "MIT", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, returns), asm.Return()}})
	c.must(err)
	c.Cleanup(func() { p.Close() })
	return p
}

// hostEnd returns the port of the only pod.
func (c cluster) hostEnd(n *lab.Node) string {
	out, err := n.Exec(c.Context(), "sh", "-ec", "ls /sys/class/net/cni0/brif 2>/dev/null || ip -o link show master cni0")
	c.must(err)
	for _, word := range strings.Fields(out) {
		if name, _, _ := strings.Cut(strings.TrimSuffix(word, ":"), "@"); strings.HasPrefix(name, "veth") {
			return name
		}
	}
	c.Fatalf("no port of a pod in %q", out)
	return ""
}

// openTalk is an open connection over which a byte goes there and back all the time.
type openTalk struct{ came atomic.Int64 }

func (c cluster) talk(from, to *lab.Pod) *openTalk {
	l, err := to.Listen(c.Context(), netip.AddrPortFrom(to.Addrs[0], fastPort))
	c.must(err)
	c.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go echoAll(conn)
		}
	}()
	conn, err := from.Dial(c.Context(), "tcp", netip.AddrPortFrom(to.Addrs[0], fastPort).String())
	c.must(err)
	c.Cleanup(func() { conn.Close() })
	talk := &openTalk{}
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for b := make([]byte, 1); ; <-tick.C {
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
	}()
	go func() {
		for b := make([]byte, 4096); ; {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			talk.came.Add(int64(n))
		}
	}()
	return talk
}

func echoAll(conn net.Conn) {
	defer conn.Close()
	for b := make([]byte, 4096); ; {
		n, err := conn.Read(b)
		if err == nil {
			_, err = conn.Write(b[:n])
		}
		if err != nil {
			return
		}
	}
}

// isTalking waits until bytes come back over the fast path.
func (c cluster) isTalking(n *lab.Node, t *openTalk, when string) {
	c.Helper()
	before := t.came.Load()
	testwait.Until(c, when+": the connection goes on", func() bool { return t.came.Load() > before+50 })
	c.isFast(n)
}

// stops waits until nothing comes back during a while, which is many times what a byte needs, or tells that it goes on.
func (c cluster) stops(t *openTalk, what string) {
	c.Helper()
	testwait.Nil(c, what+" stops the open connection", func() error {
		before := t.came.Load()
		testwait.Pause(c, time.Second, "what is not stopped comes back meanwhile")
		if now := t.came.Load(); now != before {
			return fmt.Errorf("%d bytes came back in a second", now-before)
		}
		return nil
	})
}

func (c cluster) tryBrake(n *lab.Node, t *openTalk, b brake) {
	c.isTalking(n, t, "before "+b.what)
	run := func(command string) {
		c.Helper()
		out, err := n.Exec(c.Context(), "sh", "-ec", command)
		if err != nil {
			c.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	run(b.do)
	if b.passed == "" {
		c.stops(t, b.what)
	} else {
		c.isTalking(n, t, b.what+", which the page says")
	}
	run(b.undo)
	if b.whole {
		c.must(n.RestartAgent(c.Context())) // it would wait for a minute before it tries again
	}
}

// tryProgram attaches one that drops all at the port of the pod.
func (c cluster) tryProgram(n *lab.Node, veth string, t *openTalk, what string, attach func(index int) (link.Link, error)) {
	c.isTalking(n, t, "before "+what)
	var l link.Link
	c.must(n.Do(func() error {
		dev, err := net.InterfaceByName(veth)
		if err == nil {
			l, err = attach(dev.Index)
		}
		return err
	}))
	c.stops(t, what)
	c.must(l.Close())
}
