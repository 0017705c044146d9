package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// checkPods is about the host's ends of pods' interfaces. If the bridge itself is gone, that is a finding of its own.
func (e *exam) checkPods() {
	if _, ok := e.Have[linkKey(e.Bridge)]; !ok {
		return
	}
	for _, p := range e.Ports {
		switch {
		case p.Takes != "" && e.Carries(p.Takes):
			e.find(deviceTaken, p.Name, "no device that takes packets of "+p.Takes, "macvlan in passthru mode",
				"ip link del "+p.Name)
		case p.Pod && p.Master == "" && strings.HasPrefix(p.Name, "veth"):
			e.find(podUnplugged, p.Name, "master "+e.Bridge, "no master",
				fmt.Sprintf("ip link set %s master %s", p.Name, e.Bridge)).port = p.Name
		case p.Pod && p.Master == e.Bridge && !p.Up:
			e.find(podLinkDown, p.Name, "up", "down", fmt.Sprintf("ip link set %s up", p.Name)).port = p.Name
		}
	}
}

// checkKept is about pods of an earlier lease, whose gateway the agent keeps.
func (e *exam) checkKept() {
	for _, k := range e.Kept {
		if k.Pods == 0 {
			continue // not counted
		}
		old := k.Addr.Prefix.Masked()
		f := e.find(podsOfOldLease, old.String(), "no pod with an address of it", fmt.Sprintf("%d pods have one", k.Pods), "")
		f.family = netstate.FamilyOf(old.Addr())
		if shown := k.Who[:min(len(k.Who), maxShown)]; len(shown) > 0 {
			more := ""
			if n := k.Pods - len(shown); n > 0 {
				more = fmt.Sprintf(" and %d more", n)
			}
			f.says(fmt.Sprintf("delete the pods %s%s, so that their owners make new ones", strings.Join(shown, ", "), more))
		}
	}
}

// isKept reports whether a route is the kernel's to pods of an earlier lease, which goes with their gateway.
func (f Facts) isKept(r Route) bool {
	return !r.Via.IsValid() && r.Dev == f.Bridge && slices.ContainsFunc(f.Kept, func(k KeptGateway) bool {
		return k.Addr.Prefix.Masked() == r.Dst
	})
}

// checkMarks is about pods' ports that have lost the CNI plugin's mark since the agent knows them.
func (e *exam) checkMarks() {
	if s := e.Agent.Policies; s != nil {
		for _, name := range slices.Sorted(maps.Keys(s.Unmarked)) {
			mark := s.Unmarked[name]
			if _, ok := netstate.ParsePort(name, mark); ok && !strings.Contains(name+mark, "'") {
				e.find(podPortUnmarked, name, "alias "+mark, "another alias, or none",
					fmt.Sprintf("ip link set dev '%s' alias '%s'", name, mark)).port = name
			}
		}
	}
}

// checkCutOff is about pods whose interface is gone altogether.
func (e *exam) checkCutOff() {
	for _, p := range e.CutOff {
		object, command := "pod "+p.Namespace+"/"+p.Name, fmt.Sprintf("kubectl delete pod -n %s %s", p.Namespace, p.Name)
		if p.Name == "" {
			object, command = "sandbox "+p.Sandbox, ""
		}
		f := e.find(podLinkDeleted, object, p.Dev, "no such interface, and the pod's network namespace is still there", command)
		if f.addrs = p.Addrs; command == "" {
			f.says("delete the pod of this sandbox, so that its owner makes another")
		}
	}
}

// checkPodNeighbours is about entries that somebody wrote: the kernel learns those of pods by itself.
func (e *exam) checkPodNeighbours() {
	for _, n := range e.PodNeighbours {
		port := e.portOf(n.Addr)
		want := "none, or the pod's"
		if i := slices.IndexFunc(e.Ports, func(p Port) bool { return p.Name == port }); i >= 0 && e.Ports[i].PodMAC != "" {
			want = e.Ports[i].PodMAC
		}
		pods := func(s subnet.Stack) bool { return s.Subnet.Contains(n.Addr) }
		if n.MAC != want && slices.ContainsFunc(e.Lease.Snapshot.Local.Stacks, pods) {
			e.find(podNeighbour, n.Addr.String(), want, n.MAC,
				fmt.Sprintf("ip neigh del %s dev %s", n.Addr, e.Bridge)).addrs = []netip.Addr{n.Addr}
		}
	}
}

// checkEnv compares subnet.env with the lease.
func (e *exam) checkEnv() {
	file, l := e.Env, e.Lease
	var want []netip.Prefix // with the gateway's address
	for _, s := range l.Snapshot.Local.Stacks {
		want = append(want, netip.PrefixFrom(s.Subnet.Addr().Next(), s.Subnet.Bits()))
	}
	switch env := file.Env; {
	case file.Hidden, l.Missing && file.Missing:
	case file.Missing:
		e.find(envMissing, file.Path, "the lease, for the CNI plugin", "no such file", "")
	case file.Error != "":
		e.find(envDamaged, file.Path, "the lease, for the CNI plugin", file.Error, "")
	case env.BootID != "" && file.Boot != "" && env.BootID != file.Boot:
		e.find(envStale, file.Path, "of this boot", "of an earlier boot", "")
	case l.Error != "" || l.Missing || l.Hidden:
	case !slices.Equal(want, env.Subnets):
		e.find(envStale, file.Path, fmt.Sprint("subnets ", want), fmt.Sprint("subnets ", env.Subnets), "")
	case e.PodMTU != 0 && env.MTU != e.PodMTU && !e.hasMTU(env.MTU):
		e.find(envStale, file.Path, fmt.Sprintf("FLANNEL_MTU=%d", e.PodMTU), fmt.Sprintf("FLANNEL_MTU=%d", env.MTU), "")
	}
}

// checkCNI is about what the runtime finds, and would start.
func (e *exam) checkCNI() {
	c := e.CNI
	i := slices.IndexFunc(c.Files, func(f ConfFile) bool { return f.Name == c.Ours })
	path := c.Dir + "/" + c.Ours
	rival := slices.IndexFunc(c.Files, func(f ConfFile) bool { return f.Name < c.Ours && f.Error == "" && !f.Carries })
	switch {
	case c.Dir == "" || e.Bridge == "" && i < 0: // without a bridge, pods are another plugin's, or no runtime's of CNI
	case i < 0:
		var names []string
		for _, file := range c.Files {
			names = append(names, file.Name)
		}
		e.find(conflistMissing, c.Dir, c.Ours, fmt.Sprint("files ", names), "")
	case c.Files[i].Hidden:
	case c.Files[i].Error != "":
		e.find(conflistInvalid, path, "a conflist", c.Files[i].Error, "")
	case rival >= 0:
		first := c.Dir + "/" + c.Files[rival].Name
		e.find(conflistShadowed, first, path+" is the first", "it sorts before "+c.Ours,
			fmt.Sprintf("mv %s %s.disabled", first, first))
	default:
		e.checkConflist(path, c.Files[i])
	}
}

// checkConflist is about what Twill's config names.
func (e *exam) checkConflist(path string, file ConfFile) {
	for _, p := range file.Plugins {
		if !e.CNI.Binaries[p] && e.CNI.BinDir != "" {
			e.find(pluginMissing, p, e.CNI.BinDir+"/"+p, "no such program", "")
		}
	}
	if file.SubnetFile != "" && file.SubnetFile != e.Env.Path {
		e.find(conflistSubnetFile, path, "subnetFile "+e.Env.Path, "subnetFile "+file.SubnetFile, "")
	}
}

// fewLeaked is how many leaked reservations are ignored: pods come and go.
const fewLeaked = 3

// checkReservations is about addresses for new pods.
func (e *exam) checkReservations() {
	r := e.Reservations
	switch {
	case r.Capacity > 0 && r.Reserved >= r.Capacity:
		e.find(rangeFull, r.Dir, fmt.Sprintf("less than %d addresses reserved", r.Capacity),
			fmt.Sprintf("%d reserved, %d of them for pods that are gone", r.Reserved, len(r.Leaked)), "")
	case r.Capacity > 0 && r.Reserved*10 >= r.Capacity*9:
		e.find(rangeNearlyFull, r.Dir, fmt.Sprintf("a tenth of %d addresses free", r.Capacity),
			fmt.Sprintf("%d reserved, %d of them for pods that are gone", r.Reserved, len(r.Leaked)), "")
	case len(r.Leaked) > fewLeaked:
		e.find(reservationsLeaked, r.Dir, "a pod for each reservation",
			fmt.Sprintf("%d of %d have none", len(r.Leaked), r.Reserved), "").More = r.Leaked[:min(len(r.Leaked), maxShown)]
	}
}
