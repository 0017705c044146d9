package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// checkPods is about the host's ends of pods' interfaces. It has nothing to say when the bridge itself is gone.
func checkPods(f Facts) []Finding {
	if _, ok := f.Have[netstate.Key{Kind: netstate.KindLink, Name: f.Bridge}]; !ok {
		return nil
	}
	var all []Finding
	for _, p := range f.Ports {
		switch {
		case !p.Pod || p.Master != f.Bridge && p.Master != "":
		case p.Master == "" && strings.HasPrefix(p.Name, "veth"):
			all = append(all, find("pod-unplugged", p.Name, "master "+f.Bridge, "no master", fmt.Sprintf("ip link set %s master %s", p.Name, f.Bridge)))
		case p.Master == f.Bridge && !p.Up:
			all = append(all, find("pod-link-down", p.Name, "up", "down", fmt.Sprintf("ip link set %s up", p.Name)))
		}
	}
	return all
}

// checkEnv compares subnet.env with the lease.
func checkEnv(f Facts) []Finding {
	e := f.Env
	switch {
	case f.Lease.Missing && e.Missing:
		return nil
	case e.Missing:
		return []Finding{find("env-missing", e.Path, "the lease, for the CNI plugin", "no such file", "")}
	case e.Error != "":
		return []Finding{find("env-damaged", e.Path, "the lease, for the CNI plugin", e.Error, "")}
	case e.Env.BootID != "" && e.Boot != "" && e.Env.BootID != e.Boot:
		return []Finding{find("env-stale", e.Path, "of this boot", "of an earlier boot", "")}
	case f.Lease.Error != "" || f.Lease.Missing:
		return nil
	}
	if want := wantedSubnets(f); !slices.Equal(want, e.Env.Subnets) {
		return []Finding{find("env-stale", e.Path, fmt.Sprint("subnets ", want), fmt.Sprint("subnets ", e.Env.Subnets), "")}
	}
	if f.PodMTU != 0 && e.Env.MTU != f.PodMTU && !deviceHasMTU(f, e.Env.MTU) {
		return []Finding{find("env-stale", e.Path, fmt.Sprintf("FLANNEL_MTU=%d", f.PodMTU), fmt.Sprintf("FLANNEL_MTU=%d", e.Env.MTU), "")}
	}
	return nil
}

// wantedSubnets are the lease's, as subnet.env has them: with the gateway's address.
func wantedSubnets(f Facts) []netip.Prefix {
	var list []netip.Prefix
	for _, s := range f.Lease.Snapshot.Local.Stacks {
		list = append(list, netip.PrefixFrom(s.Subnet.Addr().Next(), s.Subnet.Bits()))
	}
	return list
}

// checkCNI is about what the runtime finds, and would start.
func checkCNI(f Facts) []Finding {
	c := f.CNI
	if c.Dir == "" {
		return nil
	}
	i := slices.IndexFunc(c.Files, func(file ConfFile) bool { return file.Name == c.Ours })
	if i < 0 {
		return []Finding{find("conflist-missing", c.Dir, c.Ours, fmt.Sprint("files ", names(c.Files)), "")}
	}
	ours := c.Files[i]
	switch {
	case ours.Error != "":
		return []Finding{find("conflist-invalid", c.Dir+"/"+ours.Name, "a conflist", ours.Error, "")}
	case i > 0:
		first := c.Dir + "/" + c.Files[0].Name
		return []Finding{find("conflist-shadowed", first, c.Dir+"/"+ours.Name+" is the first", "it stands before "+ours.Name, fmt.Sprintf("mv %s %s.disabled", first, first))}
	}
	var all []Finding
	for _, p := range ours.Plugins {
		if !c.Binaries[p] && c.BinDir != "" {
			all = append(all, find("plugin-missing", p, c.BinDir+"/"+p, "no such program", ""))
		}
	}
	if ours.SubnetFile != "" && ours.SubnetFile != f.Env.Path {
		all = append(all, find("conflist-subnet-file", c.Dir+"/"+ours.Name, "subnetFile "+f.Env.Path, "subnetFile "+ours.SubnetFile, ""))
	}
	return all
}

func names(files []ConfFile) []string {
	list := make([]string, 0, len(files))
	for _, f := range files {
		list = append(list, f.Name)
	}
	return list
}

// fewLeaked is up to how many leaked reservations are passed over: pods come and go.
const fewLeaked = 3

// checkIPAM is about addresses for new pods.
func checkIPAM(f Facts) []Finding {
	i := f.IPAM
	switch {
	case i.Capacity > 0 && i.Reserved >= i.Capacity:
		return []Finding{find("range-full", i.Dir, fmt.Sprintf("less than %d addresses reserved", i.Capacity),
			fmt.Sprintf("%d reserved, %d of them for pods that are gone", i.Reserved, len(i.Leaked)), "")}
	case len(i.Leaked) > fewLeaked:
		f := find("reservations-leaked", i.Dir, "a pod for each reservation", fmt.Sprintf("%d of %d have none", len(i.Leaked), i.Reserved), "")
		f.More = i.Leaked[:min(len(i.Leaked), mostShown)]
		return []Finding{f}
	}
	return nil
}
