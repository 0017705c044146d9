package fastpath

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// idle is how long TestIdle says nothing: an hour shows it with the time that conntrack really gives to flows.
var idle = flag.Duration("idle", 7*time.Second, "how long the flow of TestIdle says nothing")

// TestIdle: a flow that says nothing for nine tenths of its time is still known on both nodes, though conntrack, which has
// seen data and no answers, gives such flows much less.
func TestIdle(t *testing.T) {
	for _, filter := range []string{"0", "1"} {
		t.Run("bridge-nf-call-iptables="+filter, func(t *testing.T) {
			t.Parallel()
			a, b := fast(t, netstate.Encapsulate)
			for _, n := range []*node{a, b} {
				n.bridgeFilter(filter)
				n.sysctl(tcpTimeout, strconv.Itoa(int(*idle/time.Second)*10/9+20)) // for a machine that is late
				n.sysctl("net/netfilter/nf_conntrack_tcp_timeout_unacknowledged", strconv.Itoa(min(300, int(*idle/time.Second)/3)))
				n.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0")
			}
			a.become(b, netstate.Encapsulate)
			b.become(a, netstate.Encapsulate)
			client, server := connection(t, a.pod, b.pod, b.pod4())
			transfer(t, client, server, 20<<20)
			transfer(t, server, client, 20<<20)
			end := time.Now().Add(*idle)
			for time.Now().Before(end) { // the agents live
				testwait.Pause(t, max(0, min(time.Minute, time.Until(end))), "the flow says nothing")
				for _, n := range []*node{a, b} {
					if err := n.p.Extend(); err != nil {
						t.Fatal(err)
					}
				}
			}
			deadline := time.Now().Add(testwait.Limit)
			if err := errors.Join(client.SetDeadline(deadline), server.SetDeadline(deadline)); err != nil {
				t.Fatal(err)
			}
			before := a.count(netstate.FromPod, "encap")
			transfer(t, client, server, 1000)
			transfer(t, server, client, 1000)
			if a.count(netstate.FromPod, "encap") == before {
				t.Errorf("nothing was fast after %s; %s", *idle, a.counted())
			}
			for _, n := range []*node{a, b} {
				if have := n.connections(); !maps.Equal(have, map[string]int{"ESTABLISHED": 1}) {
					t.Errorf("node %d knows %v", n.n, have)
				}
				for _, program := range programs {
					if lost := n.count(program, "no-ct"); lost > 1 { // the first packet
						t.Errorf("the entry was not there for %d packets; %s", lost, n.counted())
					}
				}
			}
		})
	}
}

// connections counts the TCP connections that conntrack knows, by their state.
func (n *node) connections() map[string]int {
	n.t.Helper()
	states := map[string]int{}
	for _, words := range n.tracked() {
		states[words[3]]++
	}
	return states
}

// tracked returns what conntrack prints of each TCP connection: its protocol, that as a number, the seconds that are left,
// the state, and more.
func (n *node) tracked() (all [][]string) {
	n.t.Helper()
	for line := range strings.Lines(n.command("sh", "-c", "conntrack -L -p tcp 2>/dev/null")) {
		if words := strings.Fields(line); len(words) > 3 && words[0] == "tcp" {
			all = append(all, words)
		}
	}
	return all
}

// tcpPair is a connection between pods whose ends a test closes as it likes.
type tcpPair struct{ client, server *net.TCPConn }

// say sends a message each way, some times.
func (p tcpPair) say(times int) error {
	message, buffer := make([]byte, 100), make([]byte, 100)
	for range times {
		for _, way := range []tcpPair{p, {p.server, p.client}} {
			if _, err := way.client.Write(message); err != nil {
				return err
			}
			if _, err := io.ReadFull(way.server, buffer); err != nil {
				return err
			}
		}
	}
	return nil
}

// ending is a way in which a connection ends.
type ending struct {
	name string
	end  func(tcpPair) error
}

const stays = "open"

var endings = []ending{
	{stays, func(tcpPair) error { return nil }},
	{"closed by the client", func(p tcpPair) error { return errors.Join(p.client.Close(), ended(p.server), p.server.Close()) }},
	{"closed by the server", func(p tcpPair) error { return errors.Join(p.server.Close(), ended(p.client), p.client.Close()) }},
	{"reset by the client", func(p tcpPair) error {
		return errors.Join(p.client.SetLinger(0), p.client.Close(), wasReset(p.server), p.server.Close())
	}},
	{"reset by the server", func(p tcpPair) error {
		return errors.Join(p.server.SetLinger(0), p.server.Close(), wasReset(p.client), p.client.Close())
	}},
	{"half closed for a while", func(p tcpPair) error {
		if err := errors.Join(p.client.CloseWrite(), ended(p.server)); err != nil {
			return err
		}
		if _, err := p.server.Write(make([]byte, 5000)); err != nil {
			return err
		}
		if _, err := io.ReadFull(p.client, make([]byte, 5000)); err != nil {
			return err
		}
		return errors.Join(p.server.Close(), ended(p.client), p.client.Close())
	}},
}

// ended reads the end of what the other side sends.
func ended(c *net.TCPConn) error {
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %d bytes, %w, instead of the end", n, err)
	}
	return nil
}

func wasReset(c *net.TCPConn) error {
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		return fmt.Errorf("read %d bytes, %w, instead of a reset", n, err)
	}
	return nil
}

// dialer makes connections from a pod to a server in another.
type dialer struct {
	from   *space
	server *net.TCPListener
}

func newDialer(t *testing.T, a, b *node) dialer {
	t.Helper()
	d := dialer{from: a.pod}
	var err error
	b.pod.do(func() {
		d.server, err = net.ListenTCP("tcp", &net.TCPAddr{IP: b.pod4().AsSlice()})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.server.Close() })
	return d
}

// dial makes a connection from a port of the pod, or with 0 from any.
func (d dialer) dial(port int) (p tcpPair, err error) {
	reuse := func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}
	end := time.Now().Add(testwait.Limit)
	own := net.Dialer{Timeout: testwait.Limit, Control: reuse, LocalAddr: &net.TCPAddr{Port: port}}
	var c net.Conn
	for {
		d.from.do(func() { c, err = own.Dial("tcp", d.server.Addr().String()) })
		if !errors.Is(err, unix.EADDRNOTAVAIL) || time.Now().After(end) {
			break // the port's last connection waited for its last packet
		}
	}
	if err != nil {
		return p, err
	}
	p.client = c.(*net.TCPConn)
	deadline := time.Now().Add(3 * testwait.Limit)
	if p.server, err = d.server.AcceptTCP(); err == nil {
		err = errors.Join(p.client.SetDeadline(deadline), p.server.SetDeadline(deadline))
	}
	return p, err
}

// TestManyConnections: of 10,000 connections that end in all ways, thousands of them open at once, conntrack keeps on both
// nodes what it keeps without the fast path, for as long.
func TestManyConnections(t *testing.T) {
	const connections, waves = 5004, 2 // a process may have no more than 20,000 files where nobody raised that
	moreFiles(t, 20000)
	a, b := fast(t, netstate.Encapsulate)
	a.bridgeFilter("1")
	for _, n := range []*node{a, b} {
		n.sysctl("net/netfilter/nf_conntrack_tcp_timeout_close", "120") // not 10: the entries are counted at the end
	}
	d := newDialer(t, a, b)
	for i, paused := range []bool{true, false} {
		until := time.Time{}
		if paused {
			until = time.Now().Add(time.Hour)
		}
		for _, n := range []*node{a, b} {
			n.command("conntrack", "-F")
			if err := n.p.Pause(until); err != nil {
				t.Fatal(err)
			}
		}
		before := a.fastPackets(netstate.Encapsulate) + b.fastPackets(netstate.Encapsulate)
		var open []tcpPair
		for wave := range waves {
			open = append(open, d.endAll(t, 10000+(i*waves+wave)*connections, connections)...)
		}
		went := a.fastPackets(netstate.Encapsulate) + b.fastPackets(netstate.Encapsulate) - before
		if paused != (went == 0) || !paused && went < 4*connections*waves {
			t.Errorf("paused: %t, but %d packets were fast", paused, went)
		}
		for _, n := range []*node{a, b} {
			ending, lasting := n.remaining(120)
			t.Logf("paused: %t: node %d knows %v", paused, n.n, n.connections())
			if lasting != len(open) || ending != connections*waves-len(open) {
				t.Errorf("paused: %t: node %d forgets %d soon and keeps %d; %d of %d are open", paused, n.n, ending, lasting,
					len(open), connections*waves)
			}
		}
		for _, p := range open {
			if err := errors.Join(p.client.SetLinger(0), p.client.Close(), wasReset(p.server), p.server.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// moreFiles lets the process have so many files, unless it may have more.
func moreFiles(t *testing.T, n uint64) {
	t.Helper()
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	if err == nil && limit.Cur < n {
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: max(n, limit.Max)})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// remaining counts the TCP connections that conntrack forgets within so many seconds, and those that it keeps for longer.
// Of a flow that was fast it does not know the sequence numbers, so a reset does not close the entry: conntrack keeps its
// state, and forgets it when it would forget a closed one.
func (n *node) remaining(seconds int) (ending, lasting int) {
	n.t.Helper()
	for _, words := range n.tracked() {
		left, err := strconv.Atoi(words[2])
		if err != nil {
			n.t.Fatalf("conntrack printed %q: %v", words, err)
		}
		if left <= seconds {
			ending++
		} else {
			lasting++
		}
	}
	return ending, lasting
}

// endAll opens so many connections from ports beginning with one, lets all speak, and ends each in its way. It returns
// those that stay open.
func (d dialer) endAll(t *testing.T, port, connections int) (open []tcpPair) {
	t.Helper()
	pairs := make([]tcpPair, connections)
	for i := range pairs {
		var err error
		if pairs[i], err = d.dial(port + i); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	for i, p := range pairs {
		if err := p.say(2); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	for i, p := range pairs {
		how := endings[i%len(endings)]
		if err := how.end(p); err != nil {
			t.Fatalf("connection %d, %s: %v", i, how.name, err)
		}
		if how.name == stays {
			open = append(open, p)
		}
	}
	return open
}

// sentAgain is how many TCP packets were sent again, the first ones of connections too.
func (s *space) sentAgain() (packets int) {
	s.t.Helper()
	var table []byte
	var err error
	s.do(func() { table, err = os.ReadFile("/proc/thread-self/net/snmp") })
	var names, values []string
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); fields[0] == "Tcp:" {
			names, values = values, fields
		}
	}
	i := slices.Index(names, "RetransSegs")
	if err == nil && i < 0 {
		err = errors.New("the kernel does not count RetransSegs")
	}
	if err == nil {
		packets, err = strconv.Atoi(values[i])
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return packets
}

// TestReusedPorts: a client that takes the port of a connection that has just ended can speak at once.
func TestReusedPorts(t *testing.T) {
	a, b := fast(t, netstate.Encapsulate)
	d := newDialer(t, a, b)
	for _, how := range endings {
		if how.name == stays || how.name == "closed by the client" || how.name == "half closed for a while" {
			continue // the port is taken, or the client waits two minutes with it
		}
		t.Run(how.name, func(t *testing.T) {
			port := 0
			again := a.pod.sentAgain() + b.pod.sentAgain()
			const connections = 200
			for i := range connections {
				p, err := d.dial(port)
				if err != nil {
					t.Fatalf("connection %d: %v", i, err)
				}
				port = p.client.LocalAddr().(*net.TCPAddr).Port
				if err := errors.Join(p.say(3), how.end(p)); err != nil {
					t.Fatalf("connection %d: %v", i, err)
				}
			}
			// What an old entry misleads is lost in each connection; a slow machine sends some again that arrived late.
			if again = a.pod.sentAgain() + b.pod.sentAgain() - again; again >= connections/4 {
				t.Errorf("%d connections sent %d packets again", connections, again)
			}
		})
	}
	if n := a.fastPackets(netstate.Encapsulate); n < 1000 {
		t.Errorf("%d packets were fast; %s", n, a.counted())
	}
}
