package follow

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/probe"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// maxPods and maxPeers bound what one node probes: each pod sends to all of them.
const maxPods, maxPeers = 8, doctor.MostPeersProbed

// Node returns the network as one node sees it, which is in the namespace that in calls functions in: its own pods, as far as
// it may enter them or act for them; itself with the bridge's address, if it may enter none; and the bridges of its peers, which cannot be
// entered and answer by themselves, as do the pods of other nodes that more has. Pods of this node that more has are among
// those that send.
func Node(in func(func() error) error, f doctor.Facts, more ...netip.Addr) (Network, error) {
	here := watch.Place{Host: f.Node, Do: in}
	n := Network{MTU: f.PodMTU, Expected: Expects(f)}
	var files map[string]string
	var may bool
	err := in(func() (err error) {
		files, err = behind()
		may = probe.MayActFor()
		return err
	})
	if err != nil {
		return n, err
	}
	var outer []netip.Addr
	for _, s := range f.Lease.Snapshot.Local.Stacks {
		a := s.Underlay // what peers send to, which a router may translate
		if u, ok := f.Underlay.Underlay(netstate.FamilyOf(a)); ok {
			a = u.Local
		}
		outer = append(outer, a)
	}
	n.ownPods(f, files, outer, more)
	if may {
		for i := range n.Pods {
			n.Pods[i].Deputy, n.Pods[i].Behind = here, f.Bridge
		}
	}
	if !slices.ContainsFunc(n.Pods, func(p Pod) bool { return p.Do != nil }) { // it asks the pods, which answer by themselves
		own := Pod{Place: here, Node: f.Node, Outer: outer, Borrowed: true}
		for _, s := range f.Lease.Snapshot.Local.Stacks {
			own.Addrs = append(own.Addrs, backend.Gateway(s.Subnet))
		}
		n.Pods = append(n.Pods, own)
	}
	for _, peer := range f.Lease.Snapshot.Peers[:min(maxPeers, len(f.Lease.Snapshot.Peers))] {
		p := Pod{Place: watch.Place{Host: peer.Node}, Node: peer.Node}
		for _, s := range peer.Stacks {
			p.Outer = append(p.Outer, s.Underlay)
			if a, ok := answering(f, peer.Node, s.Subnet); ok {
				p.Addrs = append(p.Addrs, a)
			}
		}
		n.Pods = append(n.Pods, p)
	}
	for _, a := range more {
		if !slices.ContainsFunc(n.Pods, func(p Pod) bool { return slices.Contains(p.Addrs, a) }) {
			node := f.HolderOf(a)
			n.Pods = append(n.Pods, Pod{Place: watch.Place{Host: a.String()}, Node: node, Addrs: []netip.Addr{a},
				Outer: outerOf(f, node, outer)})
		}
	}
	n.Path = func(from, to Pod) []watch.Place {
		path := []watch.Place{from.Place}
		for _, s := range []watch.Place{here, to.Place} {
			if path[len(path)-1].Host != s.Host {
				path = append(path, s)
			}
		}
		return path
	}
	return n, nil
}

// answering returns the address of a peer that is asked: its bridge's, or a pod's if only that answers pings. It is false if
// nothing there answers any, and connections are answered.
func answering(f doctor.Facts, peer string, subnet netip.Prefix) (netip.Addr, bool) {
	for _, p := range f.Probes {
		if p.Node == peer && subnet.Contains(p.To) {
			return p.To, !p.Connects
		}
	}
	return backend.Gateway(subnet), true
}

// outerOf returns the underlay's addresses of a node.
func outerOf(f doctor.Facts, node string, own []netip.Addr) (all []netip.Addr) {
	if node == f.Node {
		return own
	}
	for _, peer := range f.Lease.Snapshot.Peers {
		if peer.Node == node {
			for _, s := range peer.Stacks {
				all = append(all, s.Underlay)
			}
		}
	}
	return all
}

// PodSites returns the namespaces of a node's pods that can be entered, by their addresses. The node is in the namespace that
// in calls functions in.
func PodSites(in func(func() error) error, f doctor.Facts) (map[netip.Addr]watch.Place, error) {
	var files map[string]string
	if err := in(func() (err error) { files, err = behind(); return err }); err != nil {
		return nil, err
	}
	all := map[netip.Addr]watch.Place{}
	for _, p := range f.Pods {
		if isOwn(f, p.Addr) && files[p.Port] != "" {
			all[p.Addr] = watch.Place{Host: f.Node + "/" + p.Port, Do: enter(files[p.Port])}
		}
	}
	return all, nil
}

// ownPods adds the node's pods, those with an address of first before others. Those that may not be entered send nothing,
// and their kernel answers.
func (n *Network) ownPods(f doctor.Facts, files map[string]string, outer, first []netip.Addr) {
	pods := slices.Clone(f.Pods)
	slices.SortStableFunc(pods, func(a, b doctor.Pod) int {
		return cmp.Compare(slices.Index(first, b.Addr), slices.Index(first, a.Addr))
	})
	for _, p := range pods {
		host := f.Node + "/" + p.Port
		i := slices.IndexFunc(n.Pods, func(o Pod) bool { return o.Host == host })
		switch {
		case !isOwn(f, p.Addr):
		case i >= 0:
			n.Pods[i].Addrs = append(n.Pods[i].Addrs, p.Addr)
		case len(n.Pods) < maxPods:
			pod := Pod{Place: watch.Place{Host: host}, Node: f.Node, Addrs: []netip.Addr{p.Addr}, Outer: outer}
			if files[p.Port] != "" {
				pod.Do = enter(files[p.Port])
			}
			n.Pods = append(n.Pods, pod)
		}
	}
	if slices.ContainsFunc(n.Pods, func(p Pod) bool { return p.Do == nil }) {
		n.Unread = append(n.Unread, "inside of pods, and their TCP and UDP: to enter them takes CAP_SYS_ADMIN")
	}
}

// isOwn reports whether an address is of the node's own subnets: what other namespaces behind its devices have is not.
func isOwn(f doctor.Facts, a netip.Addr) bool {
	return slices.ContainsFunc(f.Lease.Snapshot.Local.Stacks, func(s subnet.Stack) bool { return s.Subnet.Contains(a) })
}

// Sender returns the address that packets from a pod are sent from: the pod's, or that of the first pod of its family
// if it cannot be entered.
func (n Network) Sender(pod netip.Addr) netip.Addr {
	first := netip.Addr{}
	for _, p := range n.Pods {
		if p.sender().Do != nil && slices.Contains(p.Addrs, pod) {
			return pod
		}
		if a := addr(p.Addrs, pod.Is4()); p.sender().Do != nil && !first.IsValid() {
			first = a
		}
	}
	return first
}
