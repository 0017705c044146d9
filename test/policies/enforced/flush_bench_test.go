package enforced

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/filter"
	"github.com/twill-net/twill/policy"
)

// BenchmarkFlush flushes the node's ruleset while an Enforcer runs. Packets that policies deny go to a pod of the node all the
// time: closed is from the first one that arrives to the last, and back from the first one to when all policies are written.
func BenchmarkFlush(b *testing.B) {
	for _, pods := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			c := start(b, pods)
			denied := deniedPackets(b, c)
			testwait.Until(b, "packets arrive without policies", func() bool { return denied.count() > 0 })
			c.tell(policy.Change{Rules: true})
			denied.mustStop(b)
			denied.take() // what came without policies
			var want []netstate.State
			for _, c.site.Doubt = range []bool{true, false} {
				state, _ := policy.Desired(c.site, c.snap)
				want = append(want, state)
			}
			var closed, back []time.Duration
			for b.Loop() {
				at := c.flush(want)
				denied.mustStop(b)
				first, last, n := denied.take()
				if n == 0 {
					b.Fatal("no packet arrived after the flush: nothing was measured")
				}
				closed, back = append(closed, last.Sub(first)), append(back, at.Sub(first))
			}
			for what, all := range map[string][]time.Duration{"closed": closed, "back": back} {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, what+"-p50-ms")
				b.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, what+"-max-ms")
			}
		})
	}
}

// flush flushes the ruleset, and returns when the Enforcer had written all of what is wanted again: of the first state that is
// there.
func (c *cluster) flush(want []netstate.State) (at time.Time) {
	c.Helper()
	reader := within{Host: c.kernel.Host} // the Enforcer's has its own socket
	check(c.B, reader.Do(func() (err error) {
		reader.tables, err = filter.New()
		return err
	}))
	defer reader.tables.Close()
	select {
	case <-c.kernel.applied: // of what was before
	default:
	}
	if _, err := c.kernel.Exec(c.Context(), "nft", "flush", "ruleset"); err != nil {
		c.Fatal(err)
	}
	for {
		select {
		case at = <-c.kernel.applied:
		case <-time.After(testwait.Limit):
			c.Fatal("nothing was written after the flush")
		}
		for _, want := range want {
			have, err := reader.Observe(c.Context(), want)
			if err != nil {
				c.Fatal(err)
			}
			if len(netstate.Diff(want, have)) == 0 {
				return at
			}
		}
	}
}

// received are the packets that reach a pod.
type received struct {
	mu          sync.Mutex
	first, last time.Time
	n           int
}

func (a *received) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n
}

// take returns when the first and the last packet arrived, and how many there were, since it was called before.
func (a *received) take() (first, last time.Time, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first, last, n = a.first, a.last, a.n
	a.n = 0
	return first, last, n
}

func (a *received) note() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = time.Now()
	if a.n == 0 {
		a.first = a.last
	}
	a.n++
}

// mustStop waits until no packet has arrived for a while, in which hundreds are sent.
func (a *received) mustStop(b *testing.B) {
	b.Helper()
	testwait.Until(b, "policies deny the packets", func() bool {
		before := a.count()
		time.Sleep(100 * time.Millisecond)
		return a.count() == before
	})
}

// deniedPackets plugs in a pod that policies isolate, and lets a host that is no pod send to it, through the node, five
// packets a millisecond or as many as the machine manages.
func deniedPackets(b *testing.B, c *cluster) *received {
	b.Helper()
	node, pod, client := c.kernel.Host, newHost(b, "tpolpod"), newHost(b, "tpolclient")
	port, addr := c.site.Ports[1].Name, c.snap.Pods[1].Addrs[0]
	for _, in := range []struct {
		host     host.Host
		commands string
	}{
		{node, "link add cni0 type bridge; addr add 10.100.0.254/24 dev cni0; link set cni0 up; " +
			"link add " + port + " type veth peer name eth0 netns " + pod.Name + "; link set " + port + " master cni0 up; " +
			"link add outside type veth peer name eth0 netns " + client.Name + "; addr add 192.0.2.1/24 dev outside; link set outside up"},
		{pod, "addr add " + addr.String() + "/24 dev eth0; link set eth0 up; route add default via 10.100.0.254"},
		{client, "addr add 192.0.2.2/24 dev eth0; link set eth0 up; route add default via 192.0.2.1"},
	} {
		for command := range strings.SplitSeq(in.commands, "; ") {
			if _, err := in.host.Exec(b.Context(), append([]string{"ip"}, strings.Fields(command)...)...); err != nil {
				b.Fatal(err)
			}
		}
	}
	check(b, node.SetSysctl("net/ipv4/ip_forward", "1"))
	var server net.PacketConn
	check(b, pod.Do(func() (err error) {
		server, err = net.ListenPacket("udp", addr.String()+":7000")
		return err
	}))
	sender, err := client.Dial(b.Context(), "udp", server.LocalAddr().String())
	check(b, err)
	var a received
	var both sync.WaitGroup
	both.Go(func() {
		for buffer := make([]byte, 1); ; a.note() {
			if _, _, err := server.ReadFrom(buffer); err != nil {
				return
			}
		}
	})
	both.Go(func() {
		for pause := time.Tick(200 * time.Microsecond); ; {
			if _, err := sender.Write([]byte{'x'}); err != nil {
				return
			}
			select {
			case <-b.Context().Done():
				return
			case <-pause:
			}
		}
	})
	b.Cleanup(func() {
		_, _ = sender.Close(), server.Close()
		both.Wait()
	})
	return &a
}
