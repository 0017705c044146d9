// Package reach measures all the time whether packets pass between this node and others. That a node is in sync says only
// that its kernel has what the leases ask for: a firewall between the nodes may still eat the packets.
//
// In each round every agent asks a few other nodes, drawn so that each node is asked by as many others, whatever the size
// of the cluster: a round costs a node the same among three nodes and among five thousand. Who does not answer is asked
// again until it does. Nothing depends on what is found: an alarm must not do more harm than its cause.
package reach

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Peer is another node.
type Peer struct {
	Node  string
	Addrs []netip.Addr // one of the node's own among its pods', of each family
}

// Config says whom a Prober asks, how often, and who is told.
type Config struct {
	Node  string        // this one
	Peers func() []Peer // the newest, in any order
	Count int           // peers that are asked in each round
	Round time.Duration // one round
	Ask   func(context.Context, netip.Addr) Answer
	// Changed is told, in the Prober's goroutine, when the first peer stops answering and when all answer again.
	Changed func(unreached []Unreached)
	Metrics *Metrics
}

// Answer is what became of the requests to one address.
type Answer struct {
	Err       error         // why nothing came back, in any protocol; nil: something did
	RoundTrip time.Duration // the shortest; 0: nobody answers echo requests
	Sent      int           // echo requests, to a peer that answers them
	Lost      int           // of these
	TooLarge  bool          // small packets pass, and those of the full size do not
}

// Unreached is a peer of which no packet comes back.
type Unreached struct {
	Node  string     `json:"node"`
	Addr  netip.Addr `json:"addr"`
	Since time.Time  `json:"since"` // when it was first asked in vain
	Error string     `json:"error"`
}

// Report is what a Prober knows, for people.
type Report struct {
	Asked     uint64      `json:"asked"` // addresses since the start
	Unreached []Unreached `json:"unreached,omitempty"`
	TooLarge  []string    `json:"tooLarge,omitempty"` // nodes to which large packets do not pass
}

// Prober asks other nodes. Make it with New.
type Prober struct {
	Config
	mu       sync.Mutex
	asked    uint64
	failing  map[key]*trouble
	tooLarge map[string]bool
	told     bool // Changed was told of some
}

type key struct {
	node string
	addr netip.Addr
}

// trouble is an address that does not answer.
type trouble struct {
	since time.Time
	times int
	err   error
}

// enough is how often an address must be asked in vain before it counts as unreached, and mostFailing how many of those
// that fail are asked again at a time.
const (
	enough      = 2
	mostFailing = 16
)

// New makes a Prober that asks nobody before Run.
func New(c Config) *Prober {
	return &Prober{Config: c, failing: map[key]*trouble{}, tooLarge: map[string]bool{}}
}

// Run asks until ctx is done. The first round begins after one has passed: until then the node and its peers find each
// other.
func (p *Prober) Run(ctx context.Context) error {
	every := time.NewTicker(p.Round / time.Duration(p.Count))
	defer every.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case at := <-every.C:
			if n >= p.Count {
				p.step(ctx, at, n%p.Count)
			}
		}
	}
}

// step asks the nth peer of the round, and those that did not answer before.
func (p *Prober) step(ctx context.Context, at time.Time, n int) {
	peers := p.Peers()
	due := p.again(peers)
	if drawn := Draw(at.UnixNano()/int64(p.Round), p.Node, peers, p.Count); len(drawn) > 0 {
		next := drawn[n%len(drawn)] // of few peers each comes up several times
		for _, a := range next.Addrs {
			due[key{next.Node, a}] = true
		}
	}
	var wait sync.WaitGroup
	for k := range due {
		wait.Go(func() { p.ask(ctx, k) })
	}
	wait.Wait()
	if ctx.Err() == nil {
		p.tell()
	}
}

// Draw returns the peers that a node asks in a round: those that follow it on a ring on which all nodes are placed anew for
// the round. Where all agents see the same nodes, each node is asked by count others.
func Draw(round int64, node string, peers []Peer, count int) []Peer {
	place := func(name string) uint64 {
		sum := sha256.Sum256([]byte(strconv.FormatInt(round, 10) + " " + name))
		return binary.BigEndian.Uint64(sum[:])
	}
	type placed struct {
		Peer
		after uint64 // on the ring
	}
	own, all := place(node), make([]placed, len(peers))
	for i, p := range peers {
		all[i] = placed{p, place(p.Node) - own}
	}
	slices.SortFunc(all, func(a, b placed) int { return cmp.Compare(a.after, b.after) })
	drawn := make([]Peer, min(count, len(all)))
	for i := range drawn {
		drawn[i] = all[i].Peer
	}
	return drawn
}

// again returns some of the addresses that failed, and forgets those that no peer has any more.
func (p *Prober) again(peers []Peer) map[key]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, nodes := map[key]bool{}, map[string]bool{}
	for _, peer := range peers {
		nodes[peer.Node] = true
		for _, a := range peer.Addrs {
			known[key{peer.Node, a}] = true
		}
	}
	for node := range p.tooLarge {
		if !nodes[node] {
			delete(p.tooLarge, node)
		}
	}
	due := map[key]bool{}
	for k := range p.failing {
		switch {
		case !known[k]:
			delete(p.failing, k)
		case len(due) < mostFailing:
			due[k] = true
		}
	}
	return due
}

// ask asks one address, and notes what came of it.
func (p *Prober) ask(ctx context.Context, k key) {
	began := time.Now()
	a := p.Ask(ctx, k.addr)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	p.Metrics.count(k, a)
	if a.TooLarge {
		p.tooLarge[k.node] = true
	} else if a.Err == nil {
		delete(p.tooLarge, k.node)
	}
	if a.Err == nil {
		delete(p.failing, k)
		return
	}
	t := p.failing[k]
	if t == nil {
		t = &trouble{since: began}
		p.failing[k] = t
	}
	t.times, t.err = t.times+1, a.Err
}

// tell updates the metrics, and tells of the first peer that is unreached, and when none is any more.
func (p *Prober) tell() {
	r := p.Report()
	p.Metrics.say(r)
	if is := len(r.Unreached) > 0; is != p.told {
		p.told = is
		p.Changed(r.Unreached)
	}
}

// Report returns what is known.
func (p *Prober) Report() Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := Report{Asked: p.asked}
	for k, t := range p.failing {
		if t.times >= enough {
			r.Unreached = append(r.Unreached, Unreached{k.node, k.addr, t.since, t.err.Error()})
		}
	}
	slices.SortFunc(r.Unreached, func(a, b Unreached) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), a.Addr.Compare(b.Addr))
	})
	for node := range p.tooLarge {
		r.TooLarge = append(r.TooLarge, node)
	}
	slices.Sort(r.TooLarge)
	return r
}
