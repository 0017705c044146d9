package e2e

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// TestRaisedMTU gives a running cluster a backend with a larger MTU. Datagrams of more than the old MTU pass between the
// running pods as before, and between them and new pods. When the old pods of a node are gone, it has the larger MTU.
func TestRaisedMTU(t *testing.T) {
	c := cluster{t, labtest.Up(t, lab.Spec{Name: "e2eraised", Store: lab.File, Nodes: 2, Pods: 2})}
	nodes := c.lab.Nodes()
	c.mustPassDatagrams("before", nodes[0].Pods(), c.lab.Pods())
	for _, backend := range []string{"host-gw", "udp"} { // of 1500 and 1472 bytes
		c.switchTo(backend)
		c.mustHaveOnly(backend)
		c.matrix()
		c.mustPassDatagrams("running pods with "+backend, nodes[0].Pods(), c.lab.Pods())
	}
	c.switchTo("host-gw")
	c.mustHaveOnly("host-gw")
	made, err := nodes[0].AddPod(c.Context(), "new")
	c.must(err)
	c.matrix()
	c.mustPassDatagrams("from a new pod", []*lab.Pod{made}, c.lab.Pods())
	c.mustPassDatagrams("to a new pod", c.lab.Pods(), []*lab.Pod{made})
	c.mustHaveMTU(nodes[0], 1450)

	for _, p := range nodes[0].Pods() {
		c.must(nodes[0].DelPod(c.Context(), p))
	}
	testwait.Until(t, "a node without old pods has the larger MTU", func() bool {
		env, err := nodes[0].Env()
		return err == nil && env.MTU == underlayMTU
	})
	made, err = nodes[0].AddPod(c.Context(), "later")
	c.must(err)
	c.mustHaveMTU(nodes[0], underlayMTU)
	c.mustHaveMTU(nodes[1], 1450)
	c.matrix()
	c.mustPassDatagrams("from a node of the larger MTU", []*lab.Pod{made}, c.lab.Pods())
	c.mustPassDatagrams("to a node of the larger MTU", nodes[1].Pods(), []*lab.Pod{made})
}

// mustHaveMTU wants subnet.env, the bridge and all pods of a node to have an MTU.
func (c cluster) mustHaveMTU(n *lab.Node, want int) {
	c.Helper()
	env, err := n.Env()
	c.must(err)
	has := map[string]int{"subnet.env": env.MTU}
	for _, p := range n.Pods() {
		has[p.ID()], err = p.MTU()
		c.must(err)
	}
	c.must(n.Links(func(nl *netlink.Handle) error {
		bridge, err := nl.LinkByName("cni0")
		if err == nil {
			has["cni0"] = bridge.Attrs().MTU
		}
		return err
	}))
	for what, mtu := range has {
		if mtu != want {
			c.Errorf("%s: the MTU of %s is %d, want %d", n.Name, what, mtu, want)
		}
	}
}

// mustPassDatagrams sends datagrams of 1432 bytes, which are StatsD's, and of 4000 bytes.
func (c cluster) mustPassDatagrams(when string, from, to []*lab.Pod) {
	c.Helper()
	const count = 20
	for _, f := range from {
		for _, p := range to {
			for _, size := range []int{1432, 4000} {
				if f.ID() == p.ID() {
					continue
				}
				if lost := c.sendDatagrams(f, p, size, count); lost > 0 {
					c.Errorf("%s: %d of %d datagrams of %d bytes from %s to %s are lost", when, lost, count, size, f.ID(), p.ID())
				}
			}
		}
	}
}

// sendDatagrams sends count datagrams and returns how many of them are lost without a word: one for which the node answers
// what size fits is the sender's to send again. After each goes a small one, which the receiver answers with the number of
// those that it has got by then.
func (c cluster) sendDatagrams(from, to *lab.Pod, size, count int) (lost int) {
	c.Helper()
	var receiver net.PacketConn
	c.must(to.Do(func() (err error) {
		var l net.ListenConfig
		receiver, err = l.ListenPacket(c.Context(), "udp", netip.AddrPortFrom(to.Addrs[0], 0).String())
		return err
	}))
	defer receiver.Close()
	go countDatagrams(receiver, size)
	sender, err := from.Dial(c.Context(), "udp", receiver.LocalAddr().String())
	c.must(err)
	defer sender.Close()
	answer, told := make([]byte, 4), 0
	for range count {
		c.must(sender.SetDeadline(time.Now().Add(testwait.Limit)))
		for _, step := range []struct {
			do func([]byte) (int, error)
			b  []byte
		}{{sender.Write, make([]byte, size)}, {sender.Write, []byte("how many?")}, {sender.Read, answer}} {
			_, err := step.do(step.b)
			if errors.Is(err, unix.EMSGSIZE) { // of the datagram before, and what is sent from now on fits
				told++
				_, err = step.do(step.b)
			}
			if err != nil {
				c.Fatalf("send %d bytes from %s to %s: %v", size, from.ID(), to.ID(), err)
			}
		}
	}
	return count - int(binary.BigEndian.Uint32(answer)) - min(told, 1)
}

func countDatagrams(conn net.PacketConn, size int) {
	var got uint32
	b := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFrom(b)
		switch {
		case err != nil:
			return
		case n == size:
			got++
		default:
			_, _ = conn.WriteTo(binary.BigEndian.AppendUint32(nil, got), from) // the sender waits for it, and fails
		}
	}
}
