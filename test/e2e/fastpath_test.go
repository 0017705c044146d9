package e2e

import (
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate/fastpath"
)

// fastPort is what pods listen on.
const fastPort = 7000

// TestFastPathUnderLoad kills, restarts and replaces agents by such without a fast path while a UDP flow and a TCP stream
// take it: no datagram is lost in either direction, and the stream arrives as it was sent.
func TestFastPathUnderLoad(t *testing.T) {
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			c := cluster{t, labtest.Up(t, lab.Spec{Name: "fastload" + strings.ReplaceAll(backend, "-", ""), Backend: backend,
				Store: lab.File, Nodes: 2, Pods: 1, FastPath: true})}
			const datagrams, alterations = 100_000, 3
			server := c.inbox(c.pod(2))
			stream := c.stream(c.pod(1), c.pod(2))
			flow := c.flow(c.pod(1), server.at)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				flow.send(stop)
			}()
			for _, n := range c.lab.Nodes() {
				c.isFast(n)
			}
			rounds := 0
			for ; rounds < alterations || flow.sent.Load() < datagrams; rounds++ {
				c.alterAgents(rounds)
			}
			close(stop)
			<-stopped
			stream(rounds)
			sent := int(flow.sent.Load())
			testwait.Nil(c, "all datagrams come, and come back", func() error {
				if there, back := server.count(), flow.count(); there != sent || back != sent {
					return fmt.Errorf("%d of %d datagrams came, and %d came back, in %d rounds", there, sent, back, rounds)
				}
				return nil
			})
		})
	}
}

// alterAgents does all that may happen to agents, once to each.
func (c cluster) alterAgents(round int) {
	for _, n := range c.lab.Nodes() {
		switch round % 3 {
		case 0:
			c.must(n.KillAgent())
			c.must(n.StartAgent(c.Context()))
		case 1:
			c.must(n.RestartAgent(c.Context()))
		case 2:
			c.withoutFastPath(n)
		}
	}
}

// withoutFastPath has an agent without a fast path for a moment.
func (c cluster) withoutFastPath(n *lab.Node) {
	c.must(n.StopAgent(c.Context()))
	agent, err := n.Start(host.Command{Path: labtest.Spec(lab.Spec{}).Programs.Agent, Log: n.Log(),
		Args: append(n.AgentFlags(), "--fast-path=off"), Env: []string{"PATH=" + os.Getenv("PATH"), "NODE_NAME=" + n.Name}})
	c.must(err)
	defer func() { _ = agent.Kill() }()
	testwait.Nil(c, n.Name+" has no fast path, as it is told", func() error {
		if all, err := c.fastPackets(n); err == nil {
			return fmt.Errorf("it has one that has taken %d packets", all)
		}
		return n.Probe(c.Context(), "/readyz")
	})
	c.must(agent.Stop(c.Context(), testwait.Limit))
	c.must(n.StartAgent(c.Context()))
	c.isFast(n)
}

// fastPackets returns how many packets took the fast path of a node.
func (c cluster) fastPackets(n *lab.Node) (all uint64, err error) {
	return all, n.Do(func() error {
		p, err := fastpath.OpenPinned(c.lab.BPFDir())
		if err != nil {
			return err
		}
		defer p.Close()
		counts, err := p.Counts()
		for _, r := range counts.Results {
			if r.Fast {
				all += r.Packets
			}
		}
		return err
	})
}

// isFast waits until the packets that pods send take the fast path of a node.
func (c cluster) isFast(n *lab.Node) {
	c.Helper()
	before, err := c.fastPackets(n)
	testwait.Nil(c, "packets take the fast path of "+n.Name, func() error {
		now, later := c.fastPackets(n)
		switch {
		case err != nil:
			before, err = now, later
			return err
		case later == nil && now < before+100:
			return fmt.Errorf("%d packets did, now %d", before, now)
		}
		return later
	})
}

// numbers are those of datagrams that came.
type numbers struct {
	mu   sync.Mutex
	seen map[uint64]bool
}

func (s *numbers) add(datagram []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[binary.BigEndian.Uint64(datagram)] = true
}

func (s *numbers) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

// bounds returns the least and the greatest number.
func (s *numbers) bounds() (least, greatest uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	least = ^uint64(0)
	for n := range s.seen {
		least, greatest = min(least, n), max(greatest, n)
	}
	return least, greatest
}

// inbox is where a pod takes datagrams and sends them back.
type inbox struct {
	numbers
	at netip.AddrPort
}

func (c cluster) inbox(p *lab.Pod) *inbox {
	b := &inbox{numbers: numbers{seen: map[uint64]bool{}}, at: netip.AddrPortFrom(p.Addrs[0], fastPort)}
	conn := c.listenUDP(p)
	go func() {
		buffer := make([]byte, 2000)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			b.add(buffer[:n])
			_, _ = conn.WriteToUDPAddrPort(buffer[:n], from)
		}
	}()
	return b
}

func (c cluster) listenUDP(p *lab.Pod) (conn *net.UDPConn) {
	c.Helper()
	c.must(p.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Addrs[0], fastPort)))
		return err
	}))
	c.Cleanup(func() { conn.Close() })
	c.enlarge(conn)
	return conn
}

func (c cluster) dial(p *lab.Pod, to netip.AddrPort) *net.UDPConn {
	c.Helper()
	conn, err := p.Dial(c.Context(), "udp", to.String())
	c.must(err)
	c.Cleanup(func() { conn.Close() })
	c.enlarge(conn.(*net.UDPConn))
	return conn.(*net.UDPConn)
}

// enlarge gives a socket such a buffer that it loses nothing itself while its reader waits for a processor.
func (c cluster) enlarge(conn *net.UDPConn) {
	raw, err := conn.SyscallConn()
	c.must(err)
	c.must(raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	}))
	c.must(err)
}

// flow sends numbered datagrams, and notes which came back.
type flow struct {
	numbers
	conn *net.UDPConn
	sent atomic.Uint64
}

func (c cluster) flow(from *lab.Pod, to netip.AddrPort) *flow {
	f := &flow{numbers: numbers{seen: map[uint64]bool{}}, conn: c.dial(from, to)}
	go func() {
		buffer := make([]byte, 2000)
		for {
			n, err := f.conn.Read(buffer)
			switch {
			case err == nil:
				f.add(buffer[:n])
			case !strings.Contains(err.Error(), "refused"):
				return
			}
		}
	}()
	return f
}

// send sends some each millisecond, since queues must not be what loses them, until stop is closed.
func (f *flow) send(stop <-chan struct{}) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for range 8 {
			n := f.sent.Add(1)
			_, _ = f.conn.Write(append(binary.BigEndian.AppendUint64(nil, n), make([]byte, 200)...))
		}
	}
}

// stream sends random bytes until the returned function is called, which compares what came with what was sent.
func (c cluster) stream(from, to *lab.Pod) (end func(rounds int)) {
	at := netip.AddrPortFrom(to.Addrs[0], fastPort)
	l, err := to.Listen(c.Context(), at)
	c.must(err)
	c.Cleanup(func() { l.Close() })
	conn, err := from.Dial(c.Context(), "tcp", at.String())
	c.must(err)
	c.Cleanup(func() { conn.Close() })
	stop, sent, came := make(chan struct{}), make(chan string, 1), make(chan string, 1)
	go func() {
		defer conn.Close()
		sent <- pour(conn, stop)
	}()
	go func() { came <- drain(l) }()
	return func(rounds int) {
		close(stop)
		out, in := <-sent, <-came
		c.Logf("%d rounds, and a stream of %s", rounds, out)
		if in != out {
			c.Errorf("the stream of %s came as %s", out, in)
		}
	}
}

var crcTable = crc64.MakeTable(crc64.ECMA)

func pour(conn net.Conn, stop <-chan struct{}) string {
	random, chunk := rand.NewChaCha8([32]byte{}), make([]byte, 16<<10)
	sum, size := uint64(0), 0
	for tick := time.NewTicker(2 * time.Millisecond); ; <-tick.C {
		select {
		case <-stop:
			tick.Stop()
			return fmt.Sprintf("%d bytes with the sum %x", size, sum)
		default:
		}
		_, _ = random.Read(chunk)
		if _, err := conn.Write(chunk); err != nil {
			return err.Error()
		}
		sum, size = crc64.Update(sum, crcTable, chunk), size+len(chunk)
	}
}

func drain(l net.Listener) string {
	conn, err := l.Accept()
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	sum, size, buffer := uint64(0), 0, make([]byte, 64<<10)
	for {
		n, err := conn.Read(buffer)
		sum, size = crc64.Update(sum, crcTable, buffer[:n]), size+n
		if err != nil {
			return fmt.Sprintf("%d bytes with the sum %x", size, sum)
		}
	}
}
