//go:build soak

package drift

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// interval is the time between two pings of a flow.
const interval = 10 * time.Millisecond

// flow is an endless ping from a pod to an address of another.
type flow struct {
	from, to *lab.Pod
	family   netstate.Family
	stream   *host.Stream
}

func (f *flow) String() string { return f.from.ID() + " to " + f.to.ID() + " " + f.family.String() }

// scope is which flows something has to do with: those of one peer, one pod, one family; each is empty for all.
type scope struct {
	none       bool
	peer, pod  string
	family     netstate.Family
	anyFamily  bool
	remoteOnly bool // flows between nodes
}

func (s scope) touches(f *flow) bool {
	ends := []string{f.from.Node.Name, f.to.Node.Name}
	pods := []string{f.from.ID(), f.to.ID()}
	switch {
	case s.none, !slices.Contains(ends, altered), !s.anyFamily && s.family != f.family, s.remoteOnly && ends[0] == ends[1],
		s.peer != "" && !slices.Contains(ends, s.peer), s.pod != "" && !slices.Contains(pods, s.pod):
		return false
	}
	return true
}

// altered is the name of the node that is altered.
const altered = "node1"

// startFlows starts a flow of each family between every two pods.
func startFlows(l *lab.Lab) ([]*flow, error) {
	var flows []*flow
	pods := l.Pods()
	for i, from := range pods {
		for _, to := range pods[i+1:] {
			for _, addr := range to.Addrs {
				s, err := from.Stream(addr, interval)
				if err != nil {
					return nil, err
				}
				flows = append(flows, &flow{from, to, netstate.FamilyOf(addr), s})
			}
		}
	}
	return flows, nil
}

// mark is where a flow was when a move began.
type mark struct {
	flow *flow
	at   host.Mark
}

func (r *run) marks() []mark {
	var marks []mark
	for _, f := range r.flows {
		marks = append(marks, mark{f, f.stream.Mark()})
	}
	return marks
}

// bystanders returns what flows have lost since the marks that are not in the scope.
func (r *run) bystanders(marks []mark, s scope) string {
	results := make([]string, len(marks))
	var all sync.WaitGroup
	for i, m := range marks {
		if s.touches(m.flow) {
			continue
		}
		all.Go(func() {
			if loss, _ := m.flow.stream.Between(r.Context(), m.at, m.flow.stream.Mark()); loss.Lost > 0 {
				results[i] = fmt.Sprintf("%s: %s", m.flow, loss)
			}
		})
	}
	all.Wait()
	return strings.Join(slices.DeleteFunc(results, func(s string) bool { return s == "" }), ", ")
}

// lost sends packets of both sizes between all pods, at the same time, and returns who did not hear from whom.
func (r *run) lost() string {
	var mu sync.Mutex
	var bad []string
	var all sync.WaitGroup
	pods := r.lab.Pods()
	for _, from := range pods {
		mtu, err := from.MTU()
		if err != nil {
			return err.Error()
		}
		for _, to := range pods {
			if from.ID() == to.ID() || from.Node.Name != altered && to.Node.Name != altered {
				continue
			}
			for _, addr := range to.Addrs {
				all.Go(func() {
					if text := pings(r, from, addr, mtu); text != "" {
						mu.Lock()
						defer mu.Unlock()
						bad = append(bad, fmt.Sprintf("%s to %s %s", from.ID(), to.ID(), text))
					}
				})
			}
		}
	}
	all.Wait()
	slices.Sort(bad)
	if len(bad) > 3 {
		bad = append(bad[:3], fmt.Sprintf("and %d more", len(bad)-3))
	}
	return strings.Join(bad, ", ")
}

// carrier is the longest time for which the kernel keeps it from a device that it has a carrier again.
const carrier = time.Second

// dead returns who did not hear from whom for a second, and for as long as a device that was repaired may be without a
// carrier.
func (r *run) dead() string {
	for deadline := time.Now().Add(patient(announced) + carrier); ; {
		if lost := r.lost(); lost == "" || time.Now().After(deadline) {
			return lost
		}
	}
}

// pings sends a small packet and one of the MTU, and says which was not answered.
func pings(r *run, from *lab.Pod, to netip.Addr, mtu int) string {
	for _, size := range []int{0, mtu} {
		ping := host.Ping{To: to, Size: size, DontFragment: size > 0, Timeout: 400 * time.Millisecond}
		if _, err := from.Ping(r.Context(), ping); err != nil {
			return fmt.Sprintf("%s size %d: %v", to, size, err)
		}
	}
	return ""
}

// forget makes the pods and the node learn again who has which address, so that what they know from before hides
// nothing.
func (r *run) forget() {
	_, _ = r.shell("ip neigh flush dev " + bridge)
	for _, p := range r.node.Pods() {
		_, _ = p.Exec(r.Context(), "ip", "neigh", "flush", "dev", "eth0")
	}
}
