package ruletrace

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/twill-net/twill/netstate/nfnl"
)

// rule is a rule of nf_tables.
type rule struct {
	handle  uint64
	effect  effect
	comment string
}

// chain is a chain of nf_tables.
type chain struct {
	hook  string // empty: only rules jump to it
	rules []rule // in their order
}

// ruleset is what nf_tables holds, as far as packets met it.
type ruleset struct {
	chains map[nfnl.Place]*chain
	queues map[uint16]bool // somebody listens to them
}

func (r ruleset) rule(p nfnl.Place, handle uint64) rule {
	if c := r.chains[p]; c != nil {
		for _, x := range c.rules {
			if x.handle == handle {
				return x
			}
		}
	}
	return rule{handle: handle}
}

// attempts bounds how often rules that change while they are read are read again.
const attempts = 10

// readRuleset reads the chains of which events tell, in the calling thread's network namespace. Of rules that keep changing it
// returns what it has read.
func readRuleset(events []event) (set ruleset, err error) {
	conn := nfnl.Conn{}
	defer conn.Close()
	for range attempts {
		if set, err = readOnce(&conn, events); !errors.Is(err, nfnl.ErrMoved) {
			return set, err
		}
	}
	return set, nil
}

func readOnce(conn *nfnl.Conn, events []event) (ruleset, error) {
	set := ruleset{map[nfnl.Place]*chain{}, readQueues()}
	r := nfnl.Reader{Conn: conn}
	for _, header := range r.Chains() {
		set.chains[header.Place] = &chain{hook: header.HookName()}
	}
	read := map[nfnl.Place]bool{}
	for _, e := range events {
		if c := set.chains[e.Place]; c != nil && !read[e.Place] && !e.isOurs() {
			read[e.Place] = true
			for _, own := range r.RulesIn(e.Family, e.Table, e.Chain) {
				c.rules = append(c.rules, rule{own.Handle, effectOf(own.Exprs), own.Comment})
			}
		}
	}
	return set, r.Err
}

// readQueues returns the numbers of the queues that a program listens to.
func readQueues() map[uint16]bool {
	queues := map[uint16]bool{}
	data, err := os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
	if err != nil {
		return queues
	}
	for line := range strings.Lines(string(data)) {
		var n uint16
		if _, err := fmt.Sscan(line, &n); err == nil {
			queues[n] = true
		}
	}
	return queues
}
