package follow

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/probe"
)

// maxFollowed is how many lost probes are followed, each of another pair of pods: one cause loses many.
const maxFollowed = 6

// rounds is how often all probes are sent: what is lost, and not while it is followed, may have been late, or is lost at
// random.
const rounds = 3

// send sends probes, and follows those that are lost. A busy machine may answer late, so it waits longer each time.
func (n Network) send(ctx context.Context, tries []probe.Try) (r Report, err error) {
	r.Notes = n.Notes
	r.miss(n.Unread)
	asides := 0 // of the last round
	for round := range rounds {
		r.Results = probe.Send(ctx, tries, time.Duration(round+1)*probe.Patience)
		n.sort(&r)
		tries = r.putAside(tries, n.askPods(ctx, &r))
		if len(r.Lost) == 0 || ctx.Err() != nil {
			break
		}
		r.Late = max(r.Late, len(r.Lost))
		followed, err := n.Follow(ctx, choose(r.Lost))
		r.Losses = followed.Losses
		r.miss(followed.Unread)
		if n.excuse(&r, followed); len(r.Losses) > 0 || len(r.Lost) == 0 || err != nil {
			r.Late = 0
			if err != nil {
				return r, err
			}
			return r, n.confirm(ctx, &r)
		}
		asides = len(followed.aside)
		tries = r.putAside(tries, followed.aside)
	}
	if asides > 0 && len(r.Lost) > 0 { // there are more of its kind than can be followed
		r.miss([]string{fmt.Sprintf("%d more lost probes, as of others such a rule was why", len(r.Lost))})
		r.Lost, r.Late = nil, 0
	}
	if len(r.Lost) == 0 || ctx.Err() != nil {
		return r, n.confirm(ctx, &r)
	}
	for _, x := range choose(r.Lost) {
		r.Losses = append(r.Losses, locate.Loss{Flow: n.flow(x), Host: x.From.Host,
			Last: "nowhere: it is lost now and then, and was not while it was watched", Missing: x.To.Host})
	}
	r.Late = 0
	return r, n.confirm(ctx, &r)
}

// askPods asks the first pods of peers whose bridge gives no answer, and the bridge again: a host may have rules for what it gets
// itself. It returns what was lost to those of which a pod answers and the bridge never does.
func (n Network) askPods(ctx context.Context, r *Report) (aside []probe.Try) {
	var asked []probe.Try
	var bridges []netip.Addr
	for _, x := range r.Lost {
		if to := n.pod(x.To.Host); to.Way != Inside || to.Do != nil || to.Host != to.Node || slices.Contains(bridges, x.Dst) {
			continue
		}
		t := x.Try
		for range attempts {
			asked, bridges = append(asked, t), append(bridges, x.Dst)
		}
		for _, t.Dst = range doctor.FirstPods(x.Dst) {
			asked, bridges = append(asked, t), append(bridges, x.Dst)
		}
	}
	answers := map[netip.Addr]probe.Result{} // by the bridge
	late := map[netip.Addr]bool{}
	for i, x := range probe.Send(ctx, asked, probe.Patience) {
		switch {
		case x.Err != nil:
		case x.Dst == bridges[i]:
			late[x.Dst] = true
		default:
			answers[bridges[i]] = x
		}
	}
	for _, lost := range r.Lost {
		if x, ok := answers[lost.Dst]; ok && !late[lost.Dst] {
			r.miss([]string{fmt.Sprintf("the bridge of %s: it gives no answer, and the pod %s does", x.To.Host, x.Dst)})
			aside = append(aside, lost.Try)
		}
	}
	return aside
}

// putAside forgets probes that say nothing of pods' packets, and returns the other tries.
func (r *Report) putAside(tries, aside []probe.Try) []probe.Try {
	isAside := func(t probe.Try) bool {
		return slices.ContainsFunc(aside, func(a probe.Try) bool {
			return a.From.Host == t.From.Host && a.Src == t.Src && a.Dst == t.Dst
		})
	}
	isResult := func(x probe.Result) bool { return isAside(x.Try) }
	if len(aside) == 0 {
		return tries
	}
	r.Results, r.Lost = slices.DeleteFunc(r.Results, isResult), slices.DeleteFunc(r.Lost, isResult)
	r.Late = len(r.Lost)
	return slices.DeleteFunc(tries, isAside)
}

// miss adds what could not be watched.
func (r *Report) miss(unread []string) {
	for _, u := range unread {
		if !slices.Contains(r.Unread, u) {
			r.Unread = append(r.Unread, u)
		}
	}
}

// sort separates what was lost as somebody asked from the rest.
func (n Network) sort(r *Report) {
	r.Lost, r.Denied, r.denied, r.isDenied = nil, nil, nil, map[string]bool{}
	for _, x := range r.Results {
		switch {
		case x.Err == nil:
		case x.Lost() && n.denies(x):
			r.denied, r.Denied, r.isDenied[x.String()] = append(r.denied, x), append(r.Denied, n.flow(x)), true
		default:
			r.Lost = append(r.Lost, x)
		}
	}
}

// IsDenied reports whether a probe was lost as somebody asked.
func (r Report) IsDenied(x probe.Result) bool { return r.isDenied[x.String()] }

// denies reports whether somebody asked that a probe is lost. What a node sends and gets itself is not forwarded there. Of what
// it sends on behalf of a pod the answer is, and judged.
func (n Network) denies(x probe.Result) bool {
	return n.Denies != nil && !x.Bound && n.Denies(n.flow(x))
}

// confirm follows some of the probes that are lost as somebody asked: something else may lose them before.
func (n Network) confirm(ctx context.Context, r *Report) error {
	if len(r.denied) == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	followed, err := n.Follow(ctx, choose(r.denied))
	r.miss(followed.Unread)
	for _, l := range followed.Losses {
		if l.Stopped {
			r.Losses = append(r.Losses, l)
		}
	}
	slices.SortStableFunc(r.Losses, surer)
	return err
}

func (n Network) tries() (all []probe.Try) {
	for _, from := range n.Pods {
		for _, to := range n.Pods {
			for _, dst := range to.Addrs {
				src := addr(from.Addrs, dst.Is4())
				acts := from.Do == nil
				if from.Host == to.Host || !src.IsValid() || from.sender().Do == nil || from.Way != Inside || acts && from.Deputy.Host == to.Host {
					continue
				}
				t := probe.Try{From: from.sender(), To: to.receiver(), Src: src, Dst: dst, Bound: from.Borrowed, OnBehalf: acts,
					Size: n.MTU}
				if chosen, err := probe.Source(t.From, dst); err == nil && !t.Bound && !t.OnBehalf {
					t.Src = chosen
				}
				for _, t.Kind = range to.kinds() {
					if !t.OnBehalf || t.Kind.Proto() == "icmp" {
						all = append(all, t)
					}
				}
			}
		}
	}
	return all
}

// choose returns the lost probes to follow: one of each pair of pods, of different senders and receivers first.
func choose(lost []probe.Result) (chosen []probe.Result) {
	hosts, pairs := map[string]int{}, map[[2]netip.Addr]bool{}
	for len(chosen) < maxFollowed {
		best := -1
		for i, r := range lost {
			if pairs[[2]netip.Addr{r.Src, r.Dst}] {
				continue
			}
			if best < 0 || hosts[r.From.Host]+hosts[r.To.Host] < hosts[lost[best].From.Host]+hosts[lost[best].To.Host] {
				best = i
			}
		}
		if best < 0 {
			break
		}
		r := lost[best]
		hosts[r.From.Host]++
		hosts[r.To.Host]++
		pairs[[2]netip.Addr{r.Src, r.Dst}], pairs[[2]netip.Addr{r.Dst, r.Src}] = true, true
		chosen = append(chosen, r)
	}
	return chosen
}

// attempts is how often a probe is sent again: a cause may lose only some packets.
const attempts = 3

// again sends lost probes again, until some are lost or all came back each time.
func again(ctx context.Context, lost []probe.Result) (still []probe.Result) {
	var tries []probe.Try
	for _, l := range lost {
		tries = append(tries, l.Try)
	}
	for range attempts {
		for _, x := range probe.Send(ctx, tries, probe.Patience) {
			if x.Err != nil {
				still = append(still, x)
			}
		}
		if len(still) > 0 || ctx.Err() != nil {
			break
		}
	}
	return still
}
