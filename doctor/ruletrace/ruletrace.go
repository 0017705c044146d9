// Package ruletrace finds the firewall rules that real packets met in one network namespace: by nf_tables' own trace,
// which names table, chain, rule and verdict, and by the counters of legacy tables, which have none.
//
// A Tracer makes tables of its own, one of each family (inet, bridge, arp, netdev). The kernel removes them when the
// Tracer's socket closes, also after a crash; before Linux 5.12 they have a fixed name, and the next Tracer replaces
// them. Each has a chain at the beginning of each hook, which marks the packets between some addresses, and one at its
// end, which shows what the hook's rules have made of them.
//
// The chains at the beginning have the lowest priority there is, and of chains with one priority the kernel asks the
// newest first: no rule that existed before Start is asked earlier. Not seen is what a rule does that is added
// later with the lowest priority, and what a flowtable does: packets of an offloaded connection pass no hook but
// ingress.
//
// What rules do is read over netlink. Their texts are those of nft, iptables and its relatives, where they are installed, and
// for people: judgements read the fields of a Hit and its Object.
package ruletrace

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/twill-net/twill/doctor/locate"
)

// Pair is two addresses of one family. It stands for the packets between them, in either direction, also inside
// VXLAN, UDP and IPIP, and for ARP and neighbour discovery about either.
type Pair struct{ A, B netip.Addr }

// What a rule does that the packet's headers do not show, as a Hit has it.
const (
	Copied  = "copied"   // it sends another packet like the one it meets
	Retyped = "new type" // it says that the packet is for another host, or for all (pkttype)
)

// maxHits bounds what Stop returns. What stops or rewrites a packet comes first.
const maxHits = 200

// Tracer watches the packets between its pairs.
type Tracer struct {
	space    *space
	scope    scope
	tables   *tables
	listener *listener
	before   []legacyRules
	missed   []error
	stop     func() ([]locate.Hit, error)
}

// Start begins to watch in the calling thread's network namespace. It needs CAP_NET_ADMIN there.
func Start(pairs []Pair) (*Tracer, error) {
	for _, p := range pairs {
		if !p.A.IsValid() || p.A.Is4() != p.B.Is4() || p.A.Is4() != p.A.Unmap().Is4() || p.B.Is4() != p.B.Unmap().Is4() {
			return nil, fmt.Errorf("trace packets between %s and %s: want two addresses of one family", p.A, p.B)
		}
	}
	t := &Tracer{scope: scope{ends: map[netip.Addr]bool{}}}
	for _, p := range pairs {
		t.scope.ends[p.A], t.scope.ends[p.B] = true, true
	}
	t.stop = sync.OnceValues(t.collect)
	err := t.start(pairs)
	if errors.Is(err, os.ErrPermission) {
		err = errors.New("trace packets through the firewall: not permitted: want CAP_NET_ADMIN in their network namespace")
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Tracer) start(pairs []Pair) (err error) {
	if t.space, err = openSpace(); err != nil {
		return err
	}
	if t.listener, err = listen(); err != nil {
		return err
	}
	if t.tables, err = openTables(); err != nil {
		return err
	}
	t.scope.table = t.tables.name
	t.before, t.missed = readLegacy()
	missed, err := t.tables.make(newMarks(pairs))
	t.missed = append(t.missed, missed...)
	if err == nil || len(t.before) == 0 {
		return err
	}
	t.missed = append(t.missed, err) // a kernel with legacy tables only
	return nil
}

// Unwatched returns why rules of some families are not seen: the kernel has no egress hook, say.
func (t *Tracer) Unwatched() []error { return t.missed }

// Close stops watching and removes all that Start made. It may be called more than once.
func (t *Tracer) Close() error {
	if t.listener != nil {
		t.listener.close()
	}
	var err error
	if t.tables != nil {
		err = t.tables.close()
	}
	if t.space != nil {
		t.space.close()
	}
	return err
}

// Stop closes the Tracer and returns what packets met since Start, in the order in which they met it. Another call
// returns the same.
func (t *Tracer) Stop() ([]locate.Hit, error) { return t.stop() }

func (t *Tracer) collect() ([]locate.Hit, error) {
	events, err := t.listener.drain()
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	var hits []locate.Hit
	err = t.space.do(func() error {
		ruleset, err := readRuleset(events)
		if err != nil {
			return err
		}
		hits = newBook(ruleset).hits(follow(events, ruleset, t.scope))
		hits = append(hits, legacyHits(t.before)...)
		return nil
	})
	return limit(hits), errors.Join(err, t.Close())
}

// limit leaves out repetitions, and then what neither stops nor rewrites, if there are too many.
func limit(hits []locate.Hit) []locate.Hit {
	seen := map[locate.Hit]bool{}
	unique := slices.DeleteFunc(hits, func(h locate.Hit) bool {
		again := seen[h]
		seen[h] = true
		return again
	})
	excess := len(unique) - maxHits
	for i := len(unique) - 1; i >= 0 && excess > 0; i-- {
		if h := unique[i]; !h.Stops && h.Rewrote == "" {
			unique = slices.Delete(unique, i, i+1)
			excess--
		}
	}
	return unique[:min(len(unique), maxHits)]
}
