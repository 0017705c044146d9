// Package follow sends probes between the pods of a network, and follows those that are lost: through every device of
// every namespace on their path, with the kernel's reasons for dropping them, the firewall rules that they met, and
// what is unusual there. Package doctor/locate judges that.
package follow

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/watch"
)

// Network is what is probed: pods, and the namespaces between them.
type Network struct {
	Pods []Pod
	// Path returns the namespaces from one pod to another, both included.
	Path func(from, to Pod) []watch.Place
	// Expected reports whether an object that is unusual elsewhere belongs in the namespace of a host; nil: none does.
	Expected func(host string, o locate.Object) bool
	MTU      int      // bytes, what a pod may send
	Unread   []string // what cannot be looked at, and why
	// Masks reports whether a node is to give packets its own address, with which others can reply; nil: none is.
	Masks func(node string, src, dst netip.Addr) bool
	// Notes are what is to be known of the way to the outside, and is no fault.
	Notes []string
	// Denies reports whether somebody asked that packets of a flow are lost; nil: nobody did.
	Denies func(locate.Flow) bool
}

// Pod is one end of probes.
type Pod struct {
	watch.Place
	Node  string
	Addrs []netip.Addr
	Outer []netip.Addr // of its node, on the underlay
	Own   []netip.Addr // of its node, which a device there must have; not what a router translates to
	// Way is what it is, if it is no pod, but outside of the cluster: it sends nothing, and any answer counts.
	Way Way
	// Borrowed reports whether it is no pod, but a node that sends from its bridge's address.
	Borrowed bool
	// Deputy is the node's namespace, which sends in the name of a pod that cannot be entered; without Do it may not.
	Deputy watch.Place
	Behind string // the device of that namespace by which the pod's own packets come
}

// sender returns where the pod's probes are sent from; its Do is nil if there is no such place.
func (p Pod) sender() watch.Place {
	if p.Do == nil {
		return watch.Place{Host: p.Host, Do: p.Deputy.Do}
	}
	return p.Place
}

// kinds returns what can be sent to a pod: where nobody can listen, a host that drops connections may be right to.
func (p Pod) kinds() []probe.Kind {
	if p.Way != Inside {
		return []probe.Kind{probe.ICMP}
	}
	if p.Do == nil {
		return []probe.Kind{probe.ICMP, probe.ICMPFull}
	}
	return probe.Kinds
}

// addr returns the address of a family.
func addr(all []netip.Addr, is4 bool) netip.Addr {
	if i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.Is4() == is4 }); i >= 0 {
		return all[i]
	}
	return netip.Addr{}
}

// Report is what became of all probes.
type Report struct {
	Results []probe.Result // of all probes that were sent
	Lost    []probe.Result // those that did not come back, or twice, and nobody asked for that
	Denied  []locate.Flow  // of those that did not come back, as somebody asked

	aside    []probe.Try     // that a rule stopped which packets of pods do not meet
	denied   []probe.Result  // the same
	isDenied map[string]bool // by what was sent
	answered map[exit]bool   // what is outside and answers, though no pings
	Late     int             // how many came back only when they were sent again
	Losses   []locate.Loss   // of those that were followed, the surest first
	Unread   []string        // what could not be watched, and why
	Notes    []string        // what is to be known of the way to the outside, and is no fault
}

// Probe sends every kind of packet from every pod to every other, and follows what is lost.
func (n Network) Probe(ctx context.Context) (Report, error) { return n.send(ctx, n.tries()) }

// ProbePair is Probe from one address of a pod to one of another.
func (n Network) ProbePair(ctx context.Context, src, dst netip.Addr) (Report, error) {
	return n.send(ctx, slices.DeleteFunc(n.tries(), func(t probe.Try) bool {
		return t.Dst != dst || !slices.Contains(n.pod(t.From.Host).Addrs, src)
	}))
}

// Follow sends lost probes again, and follows them.
func (n Network) Follow(ctx context.Context, lost []probe.Result) (r Report, err error) {
	var still, knocked []probe.Result
	seen, err := watch.While(n.options(lost), func() error {
		still = again(ctx, lost)
		knocked = n.knock(ctx, still)
		return nil
	})
	if err != nil {
		return r, err
	}
	hosts, unread, err := n.look(ctx, seen)
	if err != nil {
		return r, err
	}
	n.shared(hosts)
	ofPath(hosts)
	r.Unread = unread
	still, r.answered = n.answered(still, knocked, seen)
	identities, err := n.identify()
	if err != nil {
		r.Unread = append(r.Unread, err.Error())
	}
	mistaken := n.mistaken(identities, asked(hosts))
	n.changed(mistaken, identities, hosts)
	var likely []locate.Loss
	var unsure []probe.Try
	for _, x := range still {
		f := n.flow(x)
		if rule, ok := f.StoppedAtNode(of(f, hosts)); ok {
			r.aside = append(r.aside, x.Try)
			r.miss([]string{fmt.Sprintf("some packets of pods: what %s sends instead of them meets rule %s, which theirs do not",
				rule.Host, rule.Object.Text)})
			continue
		}
		if l := locate.Judge(f, of(f, hosts), mistaken); l.Stopped {
			r.Losses = append(r.Losses, l)
		} else {
			likely, unsure = append(likely, l), append(unsure, x.Try)
		}
	}
	// A busy machine may be late, and watching takes time: unless a rule's verdict was seen, the loss has to be there
	// without it.
	for i, x := range probe.Send(ctx, unsure, probe.Patience) {
		if x.Err != nil {
			r.Losses = append(r.Losses, likely[i])
		}
	}
	slices.SortStableFunc(r.Losses, surer)
	return r, nil
}

// surer orders losses: first those of which the cause is known for sure, then those of which one is likely.
func surer(a, b locate.Loss) int { return cmp.Compare(rank(a), rank(b)) }

func rank(l locate.Loss) int {
	switch {
	case l.By.Text == "":
		return 2
	case !l.Exact:
		return 1
	}
	return 0
}

// flow describes a lost probe for the judgement.
func (n Network) flow(r probe.Result) locate.Flow {
	f := locate.Flow{Src: r.Src, Dst: r.Dst, Proto: r.Kind.Proto(), Port: r.Port, Sent: r.String(), Error: r.Err.Error(),
		Twice: !r.Lost(), Echo: r.Echo}
	from, to := n.pod(r.From.Host), n.pod(r.To.Host)
	path := n.Path(from, to)
	for _, s := range path {
		f.Path = append(f.Path, s.Host)
	}
	if to.Way != Inside {
		f.Exit, f.Mask = from.Node, n.mask(path, from.Node, r.Src, r.Dst)
	}
	f.ByNode = r.OnBehalf || r.Bound
	if r.OnBehalf {
		f.In = from.Behind
	}
	if from.Node != to.Node {
		f.Outer = [2]netip.Addr{addr(from.Outer, r.Src.Is4()), addr(to.Outer, r.Src.Is4())}
	}
	if r.Kind == probe.ICMPFull || r.Kind == probe.UDPFull || r.Stalled() {
		f.Size = n.MTU / 2
	}
	return f
}

func (n Network) pod(host string) Pod {
	i := slices.IndexFunc(n.Pods, func(p Pod) bool { return p.Host == host })
	return n.Pods[i]
}

// places returns the namespaces on the paths of lost probes that can be entered.
func (n Network) places(lost []probe.Result) (all []watch.Place) {
	for _, r := range lost {
		all = append(all, n.Path(n.pod(r.From.Host), n.pod(r.To.Host))...)
	}
	return watch.Enterable(all)
}
