package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/subnet"
)

// Node is a namespace on the underlay with an agent in it.
type Node struct {
	host.Host        // its namespace, which is named after the lab too
	Name      string // node1, …
	Number    int    // 1, …

	lab   *Lab
	state *nodeState // guarded by lab.mu
}

func (l *Lab) newNode(ns *nodeState) *Node {
	return &Node{Host: l.host(ns.Name), Name: ns.Name, Number: ns.Number, lab: l, state: ns}
}

// enroll puts a node into the state, before anything of it exists. Subnets are kept for it beside those of its site.
func (l *Lab) enroll(n int, subnets ...netip.Prefix) (*Node, error) {
	ns := &nodeState{Name: l.spec.nodeName(n), Number: n, Subnets: subnets}
	node := l.newNode(ns)
	err := l.change(func(s *state) {
		s.Nodes = append(s.Nodes, ns)
		l.nodes = append(l.nodes, node)
	})
	return node, err
}

// Join adds one more node to the lab and returns when its agent is ready and its pods are wired. Its agent is to lease these
// subnets, if there are any.
func (l *Lab) Join(ctx context.Context, subnets ...netip.Prefix) (*Node, error) {
	nodes, err := l.JoinAtOnce(ctx, 1, subnets...)
	if len(nodes) == 0 {
		return nil, err
	}
	return nodes[0], err
}

// JoinAtOnce is Join for several nodes, whose agents start at the same time.
func (l *Lab) JoinAtOnce(ctx context.Context, count int, subnets ...netip.Prefix) (nodes []*Node, err error) {
	next := 1
	for _, n := range l.Nodes() {
		next = max(next, n.Number+1)
	}
	if last := next + count - 1; last > maxNodes {
		return nil, fmt.Errorf("node%d: the underlay has addresses for %d nodes", last, maxNodes)
	}
	for i := range count {
		n, err := l.enroll(next+i, subnets...)
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, n)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		group.Go(func() error {
			if err := n.plug(ctx); err != nil {
				return err
			}
			return n.populate(ctx)
		})
	}
	return nodes, group.Wait()
}

// Leave takes a node out of the lab, and its lease out of the store, as an administrator would.
func (n *Node) Leave(ctx context.Context) error {
	if err := errors.Join(n.KillAgent(), n.proxy().Kill()); err != nil {
		return err
	}
	if err := errors.Join(n.lab.store.forget(ctx, n), n.leaveCloud(ctx)); err != nil {
		return err
	}
	for _, h := range slices.Concat(n.podHosts(), n.Routers(), []host.Host{n.Host}) {
		if err := h.Delete(); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(n.Dir()); err != nil {
		return fmt.Errorf("remove %s: %w", n.Name, err)
	}
	return n.lab.change(func(s *state) {
		s.Nodes = slices.DeleteFunc(s.Nodes, func(ns *nodeState) bool { return ns == n.state })
		n.lab.nodes = slices.DeleteFunc(n.lab.nodes, func(o *Node) bool { return o == n })
	})
}

// Forget takes the node's lease out of the store, and the agent's checkpoint off its disk. subnet.env stays, by
// which the agent wishes for the same subnet again.
func (n *Node) Forget(ctx context.Context) error {
	if err := os.RemoveAll(n.CheckpointFile()); err != nil {
		return fmt.Errorf("forget %s: %w", n.Name, err)
	}
	if err := n.lab.store.forget(ctx, n); err != nil {
		return err
	}
	return n.lab.store.register(ctx, n)
}

// plug makes the namespace and connects it to the underlay.
func (n *Node) plug(ctx context.Context) error {
	if err := os.MkdirAll(n.Dir(), 0o755); err != nil {
		return fmt.Errorf("create the directory of %s: %w", n.Name, err)
	}
	if err := n.Create(); err != nil {
		return err
	}
	if err := n.connect(ctx); err != nil {
		return err
	}
	if err := n.joinCloud(ctx); err != nil {
		return err
	}
	return waitCarrier(ctx, n.Host)
}

// populate starts the node's agent and wires its pods. A bare lab's nodes stay as they are.
func (n *Node) populate(ctx context.Context) error {
	if n.lab.spec.Bare {
		return nil
	}
	if err := n.lab.store.register(ctx, n); err != nil {
		return err
	}
	if err := n.StartAgent(ctx); err != nil {
		return err
	}
	if err := n.startProxy(ctx); err != nil {
		return err
	}
	for i := range n.lab.spec.Pods {
		if _, err := n.AddPod(ctx, fmt.Sprintf("pod%d", i+1)); err != nil {
			return err
		}
	}
	n.lab.progress(fmt.Sprintf("%s: agent ready, subnet %s, %d pod(s)", n.Name, joined(n.Subnets()), n.lab.spec.Pods))
	return nil
}

// Underlay are the node's addresses on the underlay, IPv4 first.
func (n *Node) Underlay() []netip.Addr {
	var addrs []netip.Addr
	for _, k := range n.lab.spec.links(n.Number) {
		addrs = append(addrs, k.host.Addr())
	}
	return addrs
}

// Segment is the number of the underlay's segment that the node is on, from 0.
func (n *Node) Segment() int { return (n.Number - 1) % n.lab.spec.segments() }

// Dir is where the node's files are.
func (n *Node) Dir() string { return filepath.Join(n.lab.dir, n.Name) }

// SubnetFile is the node's subnet.env.
func (n *Node) SubnetFile() string { return filepath.Join(n.Dir(), "subnet.env") }

// Log is the file that the node's agent writes to.
func (n *Node) Log() string { return filepath.Join(n.lab.dir, "logs", n.Name+".log") }

// CheckpointFile is where the node's agent keeps its checkpoint.
func (n *Node) CheckpointFile() string { return filepath.Join(n.Dir(), "checkpoint.json") }

// Env is what subnet.env says now.
func (n *Node) Env() (subnet.Env, error) {
	data, err := os.ReadFile(n.SubnetFile())
	if err != nil {
		return subnet.Env{}, err
	}
	return subnet.ParseEnv(data)
}

// Pods are the node's pods, in the order in which they came.
func (n *Node) Pods() []*Pod {
	n.lab.mu.Lock()
	defer n.lab.mu.Unlock()
	var pods []*Pod
	for _, ps := range n.state.Pods {
		pods = append(pods, n.newPod(ps))
	}
	return pods
}

func (n *Node) podHosts() []host.Host {
	var hosts []host.Host
	for _, p := range n.Pods() {
		hosts = append(hosts, p.Host)
	}
	return hosts
}

func joined[T fmt.Stringer](values []T) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ",")
}
