package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/subnet"
)

// Herd is what the agents of virtual nodes follow leases with: the same stores as twilld's, in this process, each with
// connections of its own. All are one user, as the pods of a DaemonSet are.
type Herd struct {
	cluster *Cluster
	how     string // a subnet.Store… value, or ClientGo
	pools   []subnet.Pool
	members []*member
	lists   peak
}

// ClientGo is a herd that follows the metadata of Nodes by client-go's reflector with its defaults.
const ClientGo = "client-go"

// silence has client-go log nothing, before many goroutines use it: the first client does.
var silence = sync.OnceValue(func() error { _, err := kubeclient.New(&rest.Config{}); return err })

// NewHerd makes the herd of the virtual nodes [1, n]; none of it runs yet.
func (c *Cluster) NewHerd(how string, n int) (*Herd, error) {
	if err := silence(); err != nil {
		return nil, err
	}
	h := &Herd{cluster: c, how: how, pools: []subnet.Pool{{Network: netip.MustParsePrefix(Network), SubnetLen: 24}}}
	for i := 1; i <= n; i++ {
		h.members = append(h.members, &member{herd: h, node: i, stop: func() {}, callCounter: callCounter{lists: &h.lists, calls: Calls{}}})
	}
	return h, nil
}

// member is one agent's.
type member struct {
	callCounter
	herd       *Herd
	node       int
	checkpoint json.RawMessage // of the store; empty before a first run
	stop       func()

	mu      sync.Mutex
	known   *subnet.Snapshot // nil: none yet
	goal    Goal
	reached chan time.Time   // when goal was
	err     error            // why it ended
	heldUp  map[string]error // tasks of the store, by their names
}

// Goal reports whether a virtual node knows what it should.
type Goal func(node int, s subnet.Snapshot) bool

// Start runs all members, with what they kept of an earlier run.
func (h *Herd) Start() {
	for _, m := range h.members {
		m.start()
	}
}

// Close ends all members.
func (h *Herd) Close() {
	var all sync.WaitGroup
	for _, m := range h.members {
		all.Go(m.stop)
	}
	all.Wait()
}

// Forget makes the next start of all members one without a checkpoint.
func (h *Herd) Forget() {
	for _, m := range h.members {
		m.checkpoint = nil
	}
}

// Roll ends members and starts them again, so many at a time; one is done when it has reached the goal.
func (h *Herd) Roll(ctx context.Context, atOnce int, goal Goal) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, m := range h.members {
		g.Go(func() error {
			m.stop()
			m.start()
			_, err := m.await(ctx, goal)
			return err
		})
	}
	return g.Wait()
}

// Await waits until all members have reached the goal, and returns when each did.
func (h *Herd) Await(ctx context.Context, goal Goal) ([]time.Time, error) {
	when := make([]time.Time, len(h.members))
	var g errgroup.Group
	for i, m := range h.members {
		g.Go(func() (err error) { when[i], err = m.await(ctx, goal); return err })
	}
	return when, g.Wait()
}

// Progress says how many members have not reached their goal, and what most often holds members up.
func (h *Herd) Progress() string {
	late, counts, most := 0, map[string]int{}, ""
	for _, m := range h.members {
		m.mu.Lock()
		if m.goal != nil {
			late++
		}
		for task, err := range m.heldUp {
			reason := fmt.Sprintf("cannot %s: %v", task, err)
			if counts[reason]++; most == "" || counts[reason] > counts[most] {
				most = reason
			}
		}
		m.mu.Unlock()
	}
	if most == "" {
		return fmt.Sprintf("%d of %d stores do not know it", late, len(h.members))
	}
	return fmt.Sprintf("%d of %d stores do not know it; %d %s", late, len(h.members), counts[most], most)
}

// Calls returns what all members have sent.
func (h *Herd) Calls() Calls {
	all := Calls{}
	for _, c := range h.Each() {
		all.Add(c)
	}
	return all
}

// Each returns what each member has sent.
func (h *Herd) Each() (all []Calls) {
	for _, m := range h.members {
		all = append(all, m.soFar())
	}
	return all
}

func (m *member) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	m.stop = sync.OnceFunc(func() { cancel(); <-ended })
	m.mu.Lock()
	m.known, m.err, m.heldUp = nil, nil, map[string]error{}
	m.mu.Unlock()
	go func() {
		defer close(ended)
		follow := m.followStore
		if m.herd.how == ClientGo {
			follow = m.followClientGo
		}
		if err := follow(ctx); err != nil && ctx.Err() == nil {
			m.mu.Lock()
			m.err = err
			m.mu.Unlock()
		}
	}()
}

// told notes what the member knows now.
func (m *member) told(s subnet.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = &s
	m.look()
}

// waiting notes what holds the member's store up.
func (m *member) waiting(task string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.heldUp[task] = err; err == nil {
		delete(m.heldUp, task)
	}
}

// look tells who waits for a goal that it is reached. Call it with mu held.
func (m *member) look() {
	if m.goal != nil && m.known != nil && m.goal(m.node, *m.known) {
		m.goal = nil
		m.reached <- time.Now()
	}
}

// await waits until the member has reached the goal, and returns when it did.
func (m *member) await(ctx context.Context, goal Goal) (time.Time, error) {
	reached := make(chan time.Time, 1)
	m.mu.Lock()
	m.goal, m.reached = goal, reached
	m.look()
	m.mu.Unlock()
	select {
	case at := <-reached:
		return at, nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	peers := -1
	if m.known != nil {
		peers = len(m.known.Peers)
	}
	return time.Time{}, errors.Join(m.err, fmt.Errorf("%s knows %d peers, not what it should: %w", Name(m.node), peers, ctx.Err()))
}

// published is what virtual node i's agent publishes.
func published(i int) subnet.Lease {
	return subnet.Lease{Node: Name(i), Backend: "vxlan", Stacks: []subnet.Stack{{Subnet: Subnet(i), Underlay: Underlay(i),
		Data: fmt.Appendf(nil, `{"VNI":1,"VtepMAC":"%s"}`, MAC(i))}}}
}

// Knows is the goal to know the virtual nodes [from, to) and no others, each with all that it publishes.
func Knows(from, to int) Goal {
	all := map[string]subnet.Lease{}
	for i := from; i < to; i++ {
		all[Name(i)] = published(i)
	}
	return func(node int, s subnet.Snapshot) bool {
		wrong := func(l subnet.Lease) bool { return !all[l.Node].Equal(l) }
		return len(s.Peers) == len(all)-1 && !slices.ContainsFunc(s.Peers, wrong)
	}
}

// Sees is the goal to know virtual node i, or not to.
func Sees(i int, there bool) Goal {
	name := Name(i)
	return func(_ int, s subnet.Snapshot) bool {
		return slices.ContainsFunc(s.Peers, func(l subnet.Lease) bool { return l.Node == name }) == there
	}
}
