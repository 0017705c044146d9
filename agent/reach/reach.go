// Package reach measures all the time whether packets pass between this node and others. That a node is in sync says only
// that its kernel has what the leases ask for: a firewall between the nodes may still eat the packets.
//
// In each round every agent asks a few other nodes, drawn so that each node is asked by as many others, whatever the size
// of the cluster: while all is well a round costs a node the same among three nodes and among five thousand. Who does not
// answer is asked again, by each that has asked it, at intervals that grow to two rounds. Nothing depends on what is found:
// an alarm must not do more harm than its cause.
package reach

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twill-net/twill/internal/loop"
)

// Kind is what is asked: other nodes, or what a node needs beside them.
type Kind string

// The kinds, as people read them.
const (
	Node    Kind = ""
	Gateway Kind = "default gateway" // of the underlay
	API     Kind = "API server"
	DNS     Kind = "cluster's DNS"
)

// Peer is another node, or what else is asked.
type Peer struct {
	Kind  Kind
	Node  string           // its name; empty: it is no node
	Addrs []netip.AddrPort // of a node one of its own among its pods', of each family; without a port where none is asked
	// Sure says that the node has an address among its pods' also while it has none of them: the end of a tunnel. Of another
	// that never answered nothing is known.
	Sure bool
}

// Config says whom a Prober asks, how often, and who is told.
type Config struct {
	Node  string        // this one
	Peers func() []Peer // the newest nodes, in any order
	Needs func() []Peer // what is asked in each round beside them, the newest
	Count int           // peers that are asked in each round
	Round time.Duration // one round
	Ask   func(context.Context, Kind, netip.AddrPort) Answer
	// Changed is told, in the Prober's goroutine, of peers that do not answer any more, at most once a round, and with none
	// when all answer again.
	Changed func(unreached []Unreached)
	// State is told of all but the API server that do not answer, and of none once all do, after that has lasted for one to two
	// rounds.
	State   func(unreached []Unreached)
	Metrics *Metrics
}

// Answer is what became of the requests to one address.
type Answer struct {
	Own       error         // why nothing could be sent, which says nothing of the peer
	Err       error         // why nothing came back, in any protocol; nil: something did
	RoundTrip time.Duration // the shortest; 0: nobody answers echo requests
	Sent      int           // echo requests, to a peer that answers them
	Lost      int           // of these
	Full      bool          // packets of the full size were sent
	TooLarge  bool          // and none came back, although small ones do
}

// Unreached is a peer of which no packet comes back.
type Unreached struct {
	Kind  Kind       `json:"kind,omitempty"` // empty: a node
	Node  string     `json:"node,omitempty"`
	Addr  netip.Addr `json:"addr"`
	Since time.Time  `json:"since"` // when it was first asked in vain
	Error string     `json:"error"`
}

// String names the peer.
func (u Unreached) String() string {
	if u.Kind == Node {
		return "node " + u.Node
	}
	return "the " + string(u.Kind)
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
	answered map[key]bool // once
	silent   map[key]bool // asked, and never answered: of these nothing is known
	tooLarge map[key]bool

	// Of Run alone:
	told    map[who]bool // the unreached peers that Changed was told of
	toldAt  time.Time
	answers bool // a peer that was told of answers again
	lost    bool // what State is to be told of, since when, and how long that has to last
	since   time.Time
	hold    time.Duration
}

// who is a peer.
type who struct {
	kind Kind
	node string
}

func (p Peer) who() who { return who{p.Kind, p.Node} }

// key is one of a peer's addresses.
type key struct {
	who
	addr netip.AddrPort
}

// trouble is an address that does not answer.
type trouble struct {
	since time.Time
	times int
	err   error
	next  time.Time // when it is asked again
	pause loop.Backoff
}

// enough is how often an address must be asked in vain before it counts as unreached, and mostFailing how many of those
// that fail are asked again at a time.
const (
	enough      = 2
	mostFailing = 16
)

// New makes a Prober that asks nobody before Run.
func New(c Config) *Prober {
	return &Prober{Config: c, failing: map[key]*trouble{}, answered: map[key]bool{}, silent: map[key]bool{}, tooLarge: map[key]bool{}, told: map[who]bool{}}
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
				p.step(ctx, at, n)
			}
		}
	}
}

// step asks the next peer of the round, those that did not answer before, and in the first step what the node needs.
func (p *Prober) step(ctx context.Context, at time.Time, n int) {
	peers, needs := p.Peers(), p.Needs()
	due := p.again(at, slices.Concat(peers, needs))
	var next []Peer
	if n%p.Count == 0 {
		next = append(next, needs...)
	}
	if drawn := Draw(at.UnixNano()/int64(p.Round), p.Node, peers, p.Count); len(drawn) > 0 {
		next = append(next, drawn[n%p.Count%len(drawn)]) // of few peers each comes up several times
	}
	for _, peer := range next {
		for _, a := range peer.Addrs {
			due[key{peer.who(), a}] = peer.Sure
		}
	}
	var wait sync.WaitGroup
	for k, sure := range due {
		wait.Go(func() { p.ask(ctx, k, sure) })
	}
	wait.Wait()
	if ctx.Err() == nil {
		p.tell(at, n >= 3*p.Count)
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

// again returns some of the addresses that failed and are due, each with whether its peer is a sure one, and forgets what is no
// peer's any more.
func (p *Prober) again(at time.Time, peers []Peer) map[key]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	sure := map[key]bool{}
	for _, peer := range peers {
		for _, a := range peer.Addrs {
			sure[key{peer.who(), a}] = peer.Sure
		}
	}
	gone := func(k key) bool { _, is := sure[k]; return !is }
	maps.DeleteFunc(p.failing, func(k key, _ *trouble) bool { return gone(k) })
	maps.DeleteFunc(p.answered, func(k key, _ bool) bool { return gone(k) })
	maps.DeleteFunc(p.silent, func(k key, _ bool) bool { return gone(k) })
	maps.DeleteFunc(p.tooLarge, func(k key, _ bool) bool { return gone(k) })
	due := map[key]bool{}
	for k, t := range p.failing {
		if len(due) < mostFailing && !at.Before(t.next) {
			due[k] = sure[k]
		}
	}
	for k := range p.tooLarge {
		if len(due) < mostFailing {
			due[k] = sure[k]
		}
	}
	return due
}

// ask asks one address, and notes what came of it.
func (p *Prober) ask(ctx context.Context, k key, sure bool) {
	began := time.Now()
	a := p.Ask(ctx, k.kind, k.addr)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	p.Metrics.count(k, a)
	switch {
	case a.Own != nil:
	case a.Err == nil:
		p.answered[k] = true
		delete(p.failing, k)
		delete(p.silent, k)
		if a.TooLarge {
			p.tooLarge[k] = true
		} else if a.Full {
			delete(p.tooLarge, k)
		}
	case sure || p.answered[k]:
		t := p.failing[k]
		if t == nil {
			t = &trouble{since: began, pause: loop.Backoff{First: p.Round / time.Duration(p.Count), Last: 2 * p.Round}}
			p.failing[k] = t
		}
		t.times, t.err = t.times+1, a.Err
		if t.times >= enough {
			t.next = began.Add(t.pause.Next())
		}
	default:
		p.silent[k] = true
	}
}

// tell updates the metrics, and tells of peers that do not answer any more, and when all do again. settled says that two
// rounds have passed.
func (p *Prober) tell(at time.Time, settled bool) {
	r := p.Report()
	p.Metrics.say(r)
	p.tellState(at, r.Unreached, settled)
	now := map[who]bool{}
	var news []Unreached
	for _, u := range r.Unreached {
		w := who{u.Kind, u.Node}
		if now[w] = true; !p.told[w] {
			news = append(news, u)
		}
	}
	for w := range p.told {
		if !now[w] {
			delete(p.told, w)
			p.answers = p.answers || p.hasAnswered(func(k key) bool { return k.who == w })
		}
	}
	switch {
	case len(news) > 0 && (len(p.told) == 0 || at.Sub(p.toldAt) >= p.Round):
		p.told, p.toldAt, p.answers = now, at, false
		p.Changed(news)
	case len(now) == 0 && p.answers:
		p.answers = false
		p.Changed(nil)
	}
}

// tellState tells of what does not answer, or that all do, once that has lasted for one to two rounds, by chance: all nodes of a
// cluster may see the same. An API server that does not answer is not told of, as it would be told itself; nor is anything while
// there is something of which nothing is known.
func (p *Prober) tellState(at time.Time, unreached []Unreached, settled bool) {
	unreached = slices.DeleteFunc(slices.Clone(unreached), func(u Unreached) bool { return u.Kind == API })
	lost := len(unreached) > 0
	if lost != p.lost || p.since.IsZero() {
		p.lost, p.since, p.hold = lost, at, p.Round+rand.N(p.Round)
	}
	p.mu.Lock()
	unknown := len(p.silent) > 0
	p.mu.Unlock()
	switch {
	case at.Sub(p.since) < p.hold:
	case lost:
		p.State(unreached)
	case settled && !unknown && p.hasAnswered(func(key) bool { return true }):
		p.State(nil)
	}
}

// hasAnswered reports whether one of these that is still a peer has answered once.
func (p *Prober) hasAnswered(one func(key) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.answered {
		if one(k) {
			return true
		}
	}
	return false
}

// Report returns what is known.
func (p *Prober) Report() Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := Report{Asked: p.asked}
	for k, t := range p.failing {
		if t.times >= enough {
			r.Unreached = append(r.Unreached, Unreached{k.kind, k.node, k.addr.Addr(), t.since, t.err.Error()})
		}
	}
	slices.SortFunc(r.Unreached, func(a, b Unreached) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Kind, b.Kind), a.Addr.Compare(b.Addr))
	})
	for k := range p.tooLarge {
		r.TooLarge = append(r.TooLarge, k.node)
	}
	slices.Sort(r.TooLarge)
	r.TooLarge = slices.Compact(r.TooLarge)
	return r
}
