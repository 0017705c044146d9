package agent

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
)

// reporting is a store that remembers the reasons of events.
type reporting struct {
	*file.Store
	mu      sync.Mutex
	reasons []string
}

func (r *reporting) Event(_, reason, _ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reasons = append(r.reasons, reason)
}

func (r *reporting) Network(bool, string, string) {}
func (r *reporting) Reached(bool, string, string) {}

func (r *reporting) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.reasons, " ")
}

// TestRunSaysThatItsNameIsTaken: a machine of the same name that publishes its own address again and again is said once,
// in the log, to the cluster and to the doctor. An administrator who writes once is not.
func TestRunSaysThatItsNameIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		store := &reporting{}
		n.tune = func(c *Config) {
			store.Store = c.Store.(*file.Store)
			c.Store = store
		}
		stop := n.start()
		defer stop()
		n.eventually("ready", n.ready)
		own := n.peers()[0]
		takes := func() {
			other := own
			other.Stacks = append([]subnet.Stack(nil), own.Stacks...)
			other.Stacks[0].Underlay = addrs("192.168.33.103")[0]
			n.setPeers([]subnet.Lease{other})
			n.eventually("the own lease again", func() bool { return n.peers()[0].Equal(own) })
		}
		takes()
		time.Sleep(2 * disputeWindow)
		const line = "another machine publishes the lease of this node"
		if n.logs(line) != 0 || n.agent.report().NameTakenBy != "" {
			t.Errorf("an administrator's change is taken for a machine:\n%s", n.log.String())
		}
		for range 5 {
			takes()
		}
		if n.logs(line) != 1 || !strings.Contains(n.log.String(), "other_machine=192.168.33.103") {
			t.Errorf("want one line that names the other machine:\n%s", n.log.String())
		}
		if got := store.text(); strings.Count(got, "NodeNameTaken") != 1 {
			t.Errorf("events: %s", got)
		}
		if got := n.agent.report().NameTakenBy; got != "192.168.33.103" {
			t.Errorf("the status names %q", got)
		}
		time.Sleep(2 * disputeWindow)
		if got := n.agent.report().NameTakenBy; got != "" {
			t.Errorf("the status still names %q", got)
		}
	})
}
