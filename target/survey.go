package target

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/follow"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/netstate"
)

// Doctor diagnoses all nodes of the lab. With AllProbes it sends packets between all pods and follows the lost ones, and the
// nodes send none.
func (t *labTarget) Doctor(ctx context.Context, probe doctor.Probing, outside ...netip.Addr) (doctor.Survey, error) {
	l, err := t.Open()
	if err != nil {
		return doctor.Survey{}, err
	}
	all := probe == doctor.AllProbes
	if all {
		probe = doctor.NoProbes
	}
	nodes := t.lookAtAll(ctx, l, probe)
	var probes doctor.Probes
	var lost doctor.Lost
	if all {
		began := time.Now()
		n, err := labNetwork(l, nodes.expects)
		if err != nil {
			return doctor.Survey{}, err
		}
		toOutside(l, &n, outside)
		n.Masks = nodes.masks
		n.Denies = func(f locate.Flow) bool { return nodes.judges().Denies(f) }
		report, err := n.Probe(ctx)
		if err != nil {
			return doctor.Survey{}, err
		}
		probes, lost = probesOf(report, began), nodes.judges().Lost(report.Losses, report.Denied)
	}
	found, silent := nodes.diagnoses()
	return doctor.NewSurvey(found, silent, probes, lost), ctx.Err()
}

// labLooks are looks at the nodes of a lab, which go on beside the probes.
type labLooks struct {
	names []string
	facts []doctor.Facts
	took  []time.Duration
	errs  []error
	done  chan struct{}

	judges func() *doctor.Judges // of network policies
}

// lookAtAll begins to look at all nodes of a lab.
func (t *labTarget) lookAtAll(ctx context.Context, l *lab.Lab, probe doctor.Probing) *labLooks {
	nodes := l.Nodes()
	all := &labLooks{facts: make([]doctor.Facts, len(nodes)), took: make([]time.Duration, len(nodes)),
		errs: make([]error, len(nodes)), done: make(chan struct{})}
	var wait sync.WaitGroup
	for i, n := range nodes {
		all.names = append(all.names, n.Name)
		wait.Go(func() {
			began := time.Now()
			all.facts[i], all.errs[i] = t.here(l, n).gather(ctx, probe)
			all.took[i] = time.Since(began)
		})
	}
	go func() {
		wait.Wait()
		close(all.done)
	}()
	all.judges = sync.OnceValue(func() *doctor.Judges {
		<-all.done
		return doctor.NewJudges(all.facts...)
	})
	return all
}

// expects reports whether the agent of a node wants an object there.
func (all *labLooks) expects(host string, o locate.Object) bool {
	<-all.done
	i := slices.Index(all.names, host)
	return i >= 0 && follow.IsExpected(all.facts[i], o)
}

// masks reports whether the agent of a node wants packets masqueraded.
func (all *labLooks) masks(node string, src, dst netip.Addr) bool {
	<-all.done
	return follow.Masks(all.facts...)(node, src, dst)
}

func (all *labLooks) diagnoses() (found []doctor.Diagnosis, silent []string) {
	<-all.done
	for i, name := range all.names {
		if err := all.errs[i]; err != nil {
			silent = append(silent, fmt.Sprintf("%s: %v", name, err))
		}
		found = append(found, doctor.Diagnose(all.facts[i], all.took[i]))
	}
	return found, silent
}

// probePair sends packets from one pod of a lab to another, and follows the lost ones.
func probePair(ctx context.Context, l *lab.Lab, trace *doctor.Trace, from, to end, ends []doctor.Facts) error {
	n, err := labNetwork(l, follow.Expects(ends...))
	if err != nil {
		return err
	}
	if to.node == "" {
		toOutside(l, &n, []netip.Addr{to.addr})
	}
	n.Masks = follow.Masks(ends...)
	judges := doctor.NewJudges(ends...)
	n.Denies = judges.Denies
	began := time.Now()
	r, err := n.ProbePair(ctx, from.addr, to.addr)
	trace.Add(probesOf(r, began), judges.Lost(r.Losses, r.Denied))
	return err
}

func probesOf(r follow.Report, began time.Time) doctor.Probes {
	p := doctor.Probes{Sent: len(r.Results), Late: r.Late, Seconds: time.Since(began).Seconds(), Unread: r.Unread, Notes: r.Notes}
	p.OnlyICMP, p.Denied = p.Sent > 0, len(r.Denied)
	for _, x := range r.Results {
		p.OnlyICMP, p.OnBehalf = p.OnlyICMP && x.Kind.Proto() == "icmp", p.OnBehalf || x.OnBehalf
	}
	for _, x := range r.Lost {
		if x.Lost() {
			p.Lost++
		}
	}
	return p
}

// labNetwork returns a lab's pods, and the namespaces between them. What is expected there is to blame for nothing.
func labNetwork(l *lab.Lab, expected func(string, locate.Object) bool) (follow.Network, error) {
	n := follow.Network{Expected: expected}
	pods, mtus := map[string]*lab.Pod{}, map[int]int{}
	for _, p := range l.Pods() {
		pods[p.ID()] = p
		n.Pods = append(n.Pods, follow.Pod{Place: watch.Place{Host: p.ID(), Do: p.Do}, Node: p.Node.Name, Addrs: p.Addrs,
			Outer: p.Node.Underlay(), Own: p.Node.Underlay()})
		mtu, err := p.MTU()
		if mtus[mtu]++; err == nil && mtus[mtu] > mtus[n.MTU] { // one that was altered is not what pods may send
			n.MTU = mtu
		}
	}
	for _, node := range l.Nodes() { // what is larger than a node lets new pods send may be refused, and is no loss
		if env, err := node.Env(); err == nil {
			n.MTU = min(n.MTU, env.MTU)
		}
	}
	if len(n.Pods) < 2 || n.MTU == 0 {
		return n, fmt.Errorf("lab %s has no two pods between which packets could be sent", l.Name())
	}
	n.Path = func(from, to follow.Pod) []watch.Place {
		stops, err := stopsOf(l, pods[from.Host], pods[to.Host], to)
		if err != nil {
			return []watch.Place{from.Place, to.Place}
		}
		return stops
	}
	return n, nil
}

// stopsOf returns the hosts from a pod to another one, or to what is outside.
func stopsOf(l *lab.Lab, from, to *lab.Pod, end follow.Pod) ([]watch.Place, error) {
	if to != nil {
		return walk.Stops(l, from, to)
	}
	stops, err := walk.StopsOut(l, from)
	return append(stops, end.Place), err
}

// toOutside adds what pods are to reach outside of a lab: its host there, if nothing else is named. Nothing is sent where no
// node has a way to it.
func toOutside(l *lab.Lab, n *follow.Network, addrs []netip.Addr) {
	host, own := l.Outside()
	at := follow.Pod{Place: watch.Place{Host: "outside", Do: host.Do}, Node: "outside", Way: follow.Outside}
	isAsked := len(addrs) > 0
	if !isAsked {
		addrs = own
	}
	for _, a := range addrs {
		isReached := func(node *lab.Node) bool {
			_, err := probe.Source(watch.Place{Host: node.Name, Do: node.Do}, a)
			return !errors.Is(err, unix.ENETUNREACH)
		}
		switch {
		case !isAsked && !slices.ContainsFunc(l.Nodes(), isReached):
			n.Notes = append(n.Notes, fmt.Sprintf("no node has a route to the host outside, %s: nothing was sent there", a))
		case slices.Contains(own, a):
			at.Addrs = append(at.Addrs, a)
		default:
			n.Pods = append(n.Pods, follow.OutsideEnd(a))
		}
	}
	if len(at.Addrs) > 0 {
		n.Pods = append(n.Pods, at)
	}
}

// count adds the results of probes to the cells of their nodes.
func count(c *doctor.Connectivity, n follow.Network, r follow.Report) {
	node := map[string]string{}
	for _, p := range n.Pods {
		node[p.Host] = p.Node
	}
	for _, x := range r.Results {
		what := doctor.CameBack
		if x.Lost() {
			what = doctor.WasLost
		}
		if r.IsDenied(x) {
			what = doctor.WasDenied
		}
		c.Count(node[x.From.Host], node[x.To.Host], netstate.FamilyOf(x.Dst).String(), string(x.Kind), what)
	}
}
