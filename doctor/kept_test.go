package doctor

import (
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// keepGateway gives a node two pods of an earlier lease, whose gateway the agent keeps.
func keepGateway(f *Facts, gateway string) {
	a := netstate.Addr{Dev: "cni0", Prefix: prefix(gateway)}
	f.Have.Add(a)
	f.Kept = append(f.Kept, KeptGateway{Addr: a, Pods: 2, Who: []string{"default/a", a.Prefix.Addr().Next().String()}})
	f.Routes = append(f.Routes, Route{Dst: a.Prefix.Masked(), Dev: "cni0"})
}

// stays returns what the agent's next plan leaves as it is, and what goes with it, as commands name it.
func stays(f Facts) map[string]bool {
	changed := map[netstate.Key]bool{}
	for _, c := range f.Plan {
		changed[c.Key()] = true
	}
	all := map[string]bool{}
	for key, o := range f.Have {
		if changed[key] {
			continue
		}
		switch o := o.(type) {
		case netstate.Addr:
			all["ip addr del "+o.Prefix.String()+" dev "+o.Dev] = true
			all["ip route del "+o.Prefix.Masked().String()+" dev "+o.Dev] = true
		case netstate.Route:
			all["ip route del "+o.Dst.String()] = true
		case netstate.Neigh:
			all["ip neigh del "+o.IP.String()+" dev "+o.Dev] = true
		case netstate.FDB:
			all["bridge fdb del "+o.MAC.String()+" dev "+o.Dev] = true
		default:
			all["ip link del "+key.Name] = key.Kind == netstate.KindLink
		}
	}
	return all
}

// TestNoCommandTakesWhatStays: whatever is wrong with a node that has pods of an earlier lease, no finding has a command, or
// advises one, that removes what the agent's next plan leaves as it is.
func TestNoCommandTakesWhatStays(t *testing.T) {
	seen := 0
	for _, a := range ailments {
		f, flow := pair(t)
		keepGateway(&f, "10.244.77.1/24")
		a.inflict(&f)
		left := stays(f)
		commands := map[string]string{}
		for _, x := range Check(f) {
			commands[x.Command], commands[x.Fix] = x.ID, x.ID
		}
		if s := FollowHere(f, flow).Stopped; s != nil {
			commands[s.Command], commands[s.Fix] = s.Finding, s.Finding
		}
		for command, id := range commands {
			for taking, is := range left {
				seen++
				if is && (command == taking || strings.HasPrefix(command, taking+" ")) {
					t.Errorf("%s: %q takes what the agent keeps", id, command)
				}
			}
		}
	}
	if seen < 1000 {
		t.Errorf("only %d commands were compared", seen)
	}
}

// TestPodMTURank: while a backend is changed node by node to one of a smaller MTU, the peers that are cut off come first.
func TestPodMTURank(t *testing.T) {
	f, _ := pair(t)
	f.PodMTU, f.FullMTU, f.Env.Env.MTU, f.Ports[0].MTU = 1420, 1420, 1420, 1450
	f.Skips = []subnet.Skip{{Node: "n2", Code: subnet.OtherBackend, Detail: "it uses the backend vxlan"}}
	found := Check(f)
	if len(found) != 2 || found[0].ID != "peer-skipped" || found[1].ID != "pod-mtu" || found[1].Severity != Risk {
		t.Errorf("got %+v", found)
	}
}

// TestSmallerPodComes: a pod of a smaller MTU, which the agent has not followed yet, is no change of the underlay's.
func TestSmallerPodComes(t *testing.T) {
	f, _ := pair(t)
	f.PodMTU, f.FullMTU = 1300, f.Env.Env.MTU
	if found := Check(f); len(found) > 0 {
		t.Errorf("got %+v", found)
	}
}

// TestPodsOfOldLease: the finding names the pods to delete, and has no command.
func TestPodsOfOldLease(t *testing.T) {
	f, _ := pair(t)
	keepGateway(&f, "10.244.77.1/24")
	f.Kept[0].Pods = 4
	found := Check(f)
	if len(found) != 1 || found[0].ID != "pods-of-old-lease" || found[0].Command != "" ||
		found[0].Fix != "delete the pods default/a, 10.244.77.2 and 2 more, so that their owners make new ones" {
		t.Errorf("got %+v", found)
	}
	f.Kept[0].Pods = 0
	if found := Check(f); len(found) > 0 {
		t.Errorf("pods that could not be counted: got %+v", found)
	}
}

// TestStatusMTU: status says what MTU new pods get, and how many pods keep a larger one from the node.
func TestStatusMTU(t *testing.T) {
	f, _ := pair(t)
	f.FullMTU = f.PodMTU
	if s := NewStatus(f); s.mtu() != "1450" || s.SmallerPods != 0 {
		t.Errorf("got %q, %+v", s.mtu(), s)
	}
	f.FullMTU, f.Underlay.PortMTUs = 1500, map[int]int{1450: 2, 1472: 1, 1500: 4}
	if s := NewStatus(f); s.mtu() != "1450 (1500 without 3 pods)" || s.FullMTU != 1500 || s.SmallerPods != 3 {
		t.Errorf("got %q, %+v", s.mtu(), s)
	}
	if found := Check(f); len(found) > 0 {
		t.Errorf("a node that waits for pods to end has %+v", found)
	}
}
