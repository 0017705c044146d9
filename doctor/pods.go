package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// checkPods is about the host's ends of pods' interfaces. If the bridge itself is gone, that is a finding of its own.
func checkPods(f Facts) []Finding {
	if _, ok := f.Have[linkKey(f.Bridge)]; !ok {
		return nil
	}
	var all []Finding
	for _, p := range f.Ports {
		var finding Finding
		switch {
		case p.Pod && p.Master == "" && strings.HasPrefix(p.Name, "veth"):
			finding = find(podUnplugged, p.Name, "master "+f.Bridge, "no master", fmt.Sprintf("ip link set %s master %s", p.Name, f.Bridge))
		case p.Pod && p.Master == f.Bridge && !p.Up:
			finding = find(podLinkDown, p.Name, "up", "down", fmt.Sprintf("ip link set %s up", p.Name))
		default:
			continue
		}
		finding.port = p.Name
		all = append(all, finding)
	}
	return all
}

// checkEnv compares subnet.env with the lease.
func checkEnv(f Facts) []Finding {
	e := f.Env
	fault := func(k kind, expected, actual string) []Finding {
		return []Finding{find(k, e.Path, expected, actual, "")}
	}
	switch {
	case f.Lease.Missing && e.Missing:
		return nil
	case e.Missing:
		return fault(envMissing, "the lease, for the CNI plugin", "no such file")
	case e.Error != "":
		return fault(envDamaged, "the lease, for the CNI plugin", e.Error)
	case e.Env.BootID != "" && e.Boot != "" && e.Env.BootID != e.Boot:
		return fault(envStale, "of this boot", "of an earlier boot")
	case f.Lease.Error != "" || f.Lease.Missing:
		return nil
	}
	var want []netip.Prefix // with the gateway's address
	for _, s := range f.Lease.Snapshot.Local.Stacks {
		want = append(want, netip.PrefixFrom(s.Subnet.Addr().Next(), s.Subnet.Bits()))
	}
	if !slices.Equal(want, e.Env.Subnets) {
		return fault(envStale, fmt.Sprint("subnets ", want), fmt.Sprint("subnets ", e.Env.Subnets))
	}
	if f.PodMTU != 0 && e.Env.MTU != f.PodMTU && !deviceHasMTU(f, e.Env.MTU) {
		return fault(envStale, fmt.Sprintf("FLANNEL_MTU=%d", f.PodMTU), fmt.Sprintf("FLANNEL_MTU=%d", e.Env.MTU))
	}
	return nil
}

// checkCNI is about what the runtime finds, and would start.
func checkCNI(f Facts) []Finding {
	c := f.CNI
	if c.Dir == "" {
		return nil
	}
	var names []string
	for _, file := range c.Files {
		names = append(names, file.Name)
	}
	i := slices.Index(names, c.Ours)
	if i < 0 {
		return []Finding{find(conflistMissing, c.Dir, c.Ours, fmt.Sprint("files ", names), "")}
	}
	ours, path := c.Files[i], c.Dir+"/"+c.Ours
	switch {
	case ours.Error != "":
		return []Finding{find(conflistInvalid, path, "a conflist", ours.Error, "")}
	case i > 0:
		first := c.Dir + "/" + names[0]
		return []Finding{find(conflistShadowed, first, path+" is the first", "it sorts before "+ours.Name,
			fmt.Sprintf("mv %s %s.disabled", first, first))}
	}
	var all []Finding
	for _, p := range ours.Plugins {
		if !c.Binaries[p] && c.BinDir != "" {
			all = append(all, find(pluginMissing, p, c.BinDir+"/"+p, "no such program", ""))
		}
	}
	if ours.SubnetFile != "" && ours.SubnetFile != f.Env.Path {
		all = append(all, find(conflistSubnetFile, path, "subnetFile "+f.Env.Path, "subnetFile "+ours.SubnetFile, ""))
	}
	return all
}

// fewLeaked is how many leaked reservations are ignored: pods come and go.
const fewLeaked = 3

// checkReservations is about addresses for new pods.
func checkReservations(f Facts) []Finding {
	r := f.Reservations
	switch {
	case r.Capacity > 0 && r.Reserved >= r.Capacity:
		return []Finding{find(rangeFull, r.Dir, fmt.Sprintf("less than %d addresses reserved", r.Capacity),
			fmt.Sprintf("%d reserved, %d of them for pods that are gone", r.Reserved, len(r.Leaked)), "")}
	case len(r.Leaked) > fewLeaked:
		f := find(reservationsLeaked, r.Dir, "a pod for each reservation", fmt.Sprintf("%d of %d have none", len(r.Leaked), r.Reserved), "")
		f.More = r.Leaked[:min(len(r.Leaked), maxShown)]
		return []Finding{f}
	}
	return nil
}
