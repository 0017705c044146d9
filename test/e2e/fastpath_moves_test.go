package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/atomicfile"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
)

// TestFastPathPeerReplaced gives another node the subnet of one that still runs, and a pod there the same address, under a
// flow that takes the fast path: after the first datagram at the new pod none comes to the old one.
func TestFastPathPeerReplaced(t *testing.T) {
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			at := func(subnet string) lab.Site { return lab.Site{Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}} }
			sites := map[string]lab.Site{"node1": at("10.244.11.0/24"), "": at("10.244.77.0/24")}
			c := cluster{t, labtest.Up(t, lab.Spec{Name: "fastpeer" + strings.ReplaceAll(backend, "-", ""), Backend: backend,
				Store: lab.File, Nodes: 2, Pods: 1, FastPath: true, Sites: sites})}
			near, old := c.lab.Nodes()[0], c.lab.Nodes()[1]
			before := c.inbox(c.pod(2))
			flow := c.flow(c.pod(1), before.at)
			go flow.send(c.Context().Done())
			c.isFast(near)
			c.isFast(old)
			c.must(old.KillAgent())
			c.dropLease(old)
			node, err := c.lab.Join(c.Context())
			c.must(err)
			pod := node.Pods()[0]
			if pod.Addrs[0] != before.at.Addr() {
				c.Fatalf("the new pod has the address %s, want %s", pod.Addrs[0], before.at.Addr())
			}
			after := c.inbox(pod)
			c.isFast(near)
			c.isFast(node)
			_, greatest := before.bounds()
			least, _ := after.bounds()
			if before.count() < 100 || after.count() < 100 || greatest >= least {
				c.Errorf("%d datagrams came to the old pod, up to number %d, and %d to the new one from number %d on",
					before.count(), greatest, after.count(), least)
			}
		})
	}
}

// dropLease takes a node out of the lease file.
func (c cluster) dropLease(n *lab.Node) {
	for _, flag := range n.AgentFlags() {
		path, ok := strings.CutPrefix(flag, "--lease-file=")
		if !ok {
			continue
		}
		data, err := os.ReadFile(path)
		c.must(err)
		leases, _, err := file.Parse(data)
		c.must(err)
		var left []subnet.Lease
		for _, l := range leases {
			if l.Node != n.Name {
				left = append(left, l)
			}
		}
		data, err = file.Format(left)
		c.must(err)
		c.must(atomicfile.Write(path, data, 0o644))
	}
}

// reuses is how often an address is used again.
const reuses = 200

// TestFastPathAddressReused deletes a pod and gives its address to a new one at once, again and again, while another node's
// pod sends to the address over the fast path: each new pod answers before long, and no pod gets what was for another
// address.
func TestFastPathAddressReused(t *testing.T) {
	t.Parallel()
	conf := `{"Network": "10.244.0.0/16", "SubnetLen": 29, "Backend": {"Type": "vxlan"}}` // five pods on each node
	c := cluster{t, labtest.Start(t, lab.Spec{Name: "fastreuse", NetConf: []byte(conf), Store: lab.File, Nodes: 2, Pods: -1,
		FastPath: true})}
	near, far := c.lab.Nodes()[0], c.lab.Nodes()[1]
	client, err := near.AddPod(c.Context(), "client")
	c.must(err)
	r := &reuse{cluster: c, node: far, flows: map[netip.Addr]*asker{}}
	for range 3 {
		r.add() // they stay, and leave two addresses
	}
	pods := []*tenant{r.add(), r.add()}
	for _, p := range pods {
		r.flows[p.Addrs[0]] = c.ask(client, p.Addrs[0])
	}
	c.isFast(near)
	c.isFast(far)
	most := int64(0)
	for i := range reuses {
		old := pods[i%2]
		old.conn.Close()
		c.must(far.DelPod(c.Context(), old.Pod))
		next := r.add()
		if next.Addrs[0] != old.Addrs[0] {
			c.Fatalf("%s has the address %s, want %s", next.Name, next.Addrs[0], old.Addrs[0])
		}
		most, pods[i%2] = max(most, r.answers(next)), next
		if other := pods[(i+1)%2]; r.flows[other.Addrs[0]].answered() != other.Name {
			c.Errorf("%s was answered by %s, want %s", other.Addrs[0], r.flows[other.Addrs[0]].answered(), other.Name)
		}
	}
	c.isFast(far)
	c.Logf("the most that were sent to a new pod until it answered are %d datagrams", most)
	if n := r.wrong.Load(); n > 0 {
		c.Errorf("%d datagrams came to a pod that has another address", n)
	}
}

// reuse is a node whose pods come and go.
type reuse struct {
	cluster
	node  *lab.Node
	flows map[netip.Addr]*asker
	made  int
	wrong atomic.Int64
}

// tenant is a pod that answers each datagram with its name.
type tenant struct {
	*lab.Pod
	conn *net.UDPConn
}

func (r *reuse) add() *tenant {
	r.made++
	pod, err := r.node.AddPod(r.Context(), "p"+string(rune('a'+r.made/26%26))+string(rune('a'+r.made%26)))
	r.must(err)
	t := &tenant{pod, r.listenUDP(pod)}
	go func() {
		buffer := make([]byte, 2000)
		for {
			n, from, err := t.conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			if string(buffer[:n]) != pod.Addrs[0].String() {
				r.wrong.Add(1)
			}
			_, _ = t.conn.WriteToUDPAddrPort([]byte(pod.Name), from)
		}
	}()
	return t
}

// inVain is how many datagrams, of one each millisecond, may be sent to a pod that is there until it answers.
const inVain = 1000

// answers waits for the first answer of a new pod, and returns how many datagrams were sent until then.
func (r *reuse) answers(t *tenant) (sent int64) {
	r.Helper()
	flow := r.flows[t.Addrs[0]]
	before := flow.sent.Load()
	testwait.Until(r, fmt.Sprintf("%s answers at %s", t.Name, t.Addrs[0]), func() bool {
		sent = flow.sent.Load() - before
		if flow.answered() == t.Name {
			return true
		}
		if sent > inVain {
			r.Fatalf("%s does not answer at %s, where %q did, after %d datagrams", t.Name, t.Addrs[0], flow.answered(), sent)
		}
		return false
	})
	return sent
}

// asker sends an address its own name all the time.
type asker struct {
	sent atomic.Int64
	mu   sync.Mutex
	name string // of the pod that answered last
}

func (c cluster) ask(from *lab.Pod, addr netip.Addr) *asker {
	a, conn := &asker{}, c.dial(from, netip.AddrPortFrom(addr, fastPort))
	go func() {
		for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
			a.sent.Add(1)
			if _, err := conn.Write([]byte(addr.String())); err != nil && strings.Contains(err.Error(), "closed") {
				tick.Stop()
				return
			}
		}
	}()
	go func() {
		buffer := make([]byte, 100)
		for {
			n, err := conn.Read(buffer)
			if err != nil && strings.Contains(err.Error(), "closed") {
				return
			}
			if err == nil {
				a.mu.Lock()
				a.name = string(buffer[:n])
				a.mu.Unlock()
			}
		}
	}()
	return a
}

func (a *asker) answered() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.name
}
