package locate

import (
	"maps"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// misled finds the namespace that gave the packet a MAC that nobody behind it has: there the packet is lost, wherever it
// went. It returns the entries with that MAC. Where a rule copies packets, the copies go elsewhere, and prove nothing.
func (j *judgement) misled() (all []suspect) {
	if j.isCopied() {
		return nil
	}
	for _, name := range j.path {
		for k, s := range j.hosts[name].Seen {
			for i, mac := range s.MACs {
				forwards := i == 0 && s.Out && !slices.Contains(j.hosts[name].MACs, s.SrcMAC) // what it bridges
				if !j.isOf(s) || s.Dev == "lo" || forwards || j.isOwned(mac, s) {
					continue
				}
				all = append(all, j.entriesOf(mac)...)
				if i == 0 && !j.isMisled {
					j.isMisled, j.at, j.last = true, j.ownerOf(s.SrcMAC, name), &j.hosts[name].Seen[k]
					all = append(all, suspect{j.at, j.unnamed(s, mac), enough, false})
				}
			}
		}
	}
	return all
}

// isCopied reports whether a rule copies packets of the flow.
func (j *judgement) isCopied() bool {
	for _, name := range j.path {
		if slices.ContainsFunc(j.hosts[name].Hits, func(h Hit) bool { return h.Effect.Copies }) {
			return true
		}
	}
	return false
}

// entriesOf returns the neighbour and FDB entries on the path that have a MAC.
func (j *judgement) entriesOf(mac string) (all []suspect) {
	for _, host := range j.path {
		for _, o := range j.hosts[host].Unusual {
			if (o.Kind == Neighbour || o.Kind == FDB) && o.MAC == mac {
				all = append(all, suspect{host, o, byWire, true})
			}
		}
		for _, o := range j.hosts[host].Neighbours { // what the kernel learned may be a consequence
			if o.MAC == mac {
				all = append(all, suspect{host, o, byReason - perRank, true})
			}
		}
	}
	return all
}

// unnamed returns what must be in a namespace that sends to a MAC that nobody has.
func (j *judgement) unnamed(s Seen, mac string) Object {
	return Object{Kind: Neighbour, Dev: s.Dev, MAC: mac, Text: "lladdr " + mac + ", which no host behind it has"}
}

// ownerOf returns the host that has a MAC, else the given one.
func (j *judgement) ownerOf(mac, other string) string {
	for _, name := range j.path {
		if slices.Contains(j.hosts[name].MACs, mac) {
			return name
		}
	}
	return other
}

// routed returns the policy rules and routes that refuse the packet, or lead it away, up to where it was seen last. What
// did not decide about the packet is innocent. A route that is missing may follow from what led the packet there, or have
// gone with its device or its address.
func (j *judgement) routed(d Drop) (all []suspect) {
	isMissing := slices.ContainsFunc(j.hosts[j.at].Routed, func(r Routed) bool {
		return r.Missing && !r.Reverse && r.Back == j.back
	})
	for _, name := range j.path {
		for i, r := range j.hosts[name].Routed {
			switch {
			case r.Object.Usual == "" || r.Reverse && !isFiltered(d) || j.isInnocent(name, r):
			case r.Missing:
				all = append(all, suspect{name, r.Object, byReason, name == j.at})
			case r.Refuses && r.Back == j.back && (name == j.at || name == j.next):
				all = append(all, suspect{name, r.Object, byWire - i, true})
			default:
				score := byReason + perRank + j.near(name, Drop{}, false)
				all = append(all, suspect{name, r.Object, score, name == j.at || isMissing})
			}
		}
		if name == j.at {
			break
		}
	}
	return all
}

// isInnocent reports whether a route cannot have lost the packet: it is for the answer, which nobody sent yet; or it led
// the packet out of the host towards one that nobody watches. The default route of a tunnel's packets is as it must be, and
// so is that of packets to the outside, once they have left the pod.
func (j *judgement) isInnocent(name string, r Routed) bool {
	isAll := r.Object.About.IsValid() && r.Object.About.Bits() == 0
	isPast := name != j.path[0] || name != j.at || j.isLeaving()
	isDefault := isAll && (r.Outer && !r.Refuses || j.flow.Exit != "" && isPast && r.Object.Is("unicast"))
	isTaken := !r.Refuses && name == j.at && j.isLeaving() && j.hosts[j.next].Name == ""
	isUnanswered := name == j.at && j.next == ""
	isLater := r.Back != j.back && !r.Reverse && !isUnanswered
	return isDefault || isTaken || isLater
}

// isFiltered reports whether a packet was dropped because of the way back to its sender: by the reverse path filter, or
// because the sender's address is one of the host's own.
func isFiltered(d Drop) bool {
	return strings.Contains(d.Reason, "RPFILTER") || strings.Contains(d.Reason, "LOCAL_SOURCE")
}

// taken returns the hosts that have an address or a MAC of the flow's, and are not those that should.
func (j *judgement) taken() (all []suspect) {
	for _, host := range slices.Sorted(maps.Keys(j.mistaken)) {
		for _, o := range j.mistaken[host] {
			f := j.flow
			if o.Kind == Address && o.Usual != "" && j.dropsAddresses(host, o) {
				continue
			}
			if slices.ContainsFunc([]netip.Addr{f.Src, f.Dst, f.Outer[0], f.Outer[1]}, o.About.Contains) {
				all = append(all, suspect{host, o, byWire - perRank, true})
			}
		}
	}
	return all
}

// dropsAddresses reports whether something else is why a device lacks an address: it is down, or it has no IPv6.
func (j *judgement) dropsAddresses(host string, missing Object) bool {
	return slices.ContainsFunc(j.hosts[host].Unusual, func(o Object) bool {
		if o.Kind == Sysctl {
			return missing.About.Addr().Is6() && path.Ext(o.Part) == ".disable_ipv6" && o.Value == "1"
		}
		return o.Kind == Link && o.Dev == missing.Dev &&
			(o.Is(Down) || missing.About.Addr().Is6() && hasSmallMTU(o))
	})
}

// hasSmallMTU reports whether a link's MTU is too small for IPv6.
func hasSmallMTU(o Object) bool {
	const least = 1280
	n, err := strconv.Atoi(o.Value)
	return o.Is("mtu") && err == nil && n < least
}

// isOwned reports whether a host that the packet can still come to has this MAC, or everybody takes frames for it.
func (j *judgement) isOwned(mac string, s Seen) bool {
	hw, err := net.ParseMAC(mac)
	if err != nil || hw[0]&1 != 0 {
		return true
	}
	from := slices.Index(j.path, s.Host)
	if s.Out {
		from++
	}
	return slices.ContainsFunc(j.path[from:], func(name string) bool {
		own := j.hosts[name].MACs
		return len(own) == 0 || slices.Contains(own, mac) // of a host that is not watched nothing is known
	})
}

// rewritten returns the rules that changed the packet on its way. Where it was copied the copies may have come back, and
// end before the rule.
func (j *judgement) rewritten() (all []suspect) {
	passed := false
	for _, name := range j.path {
		for _, h := range j.hosts[name].Hits {
			isCopy := h.Effect.Copies && (j.concerns(h, j.back) || j.concerns(h, !j.back))
			isMask := h.Effect.Source && name == j.flow.Exit && j.concerns(h, false)
			if h.Rewrote == "" || !isCopy && !isMask && (passed || !j.concerns(h, j.back)) {
				continue
			}
			score, exact := byWire, !h.Counted
			switch {
			case h.Effect.Copies:
				score, exact = byReason-perRank, false
				if j.flow.Twice {
					score, exact = byWire, !h.Counted
				}
			case h.Effect.Marks:
				score, exact = byReason, false
			case h.Effect.Source && !isMask: // may follow from a new destination
				score, exact = byReason+atLast, false
			case h.Counted:
				score = byReason + atDrop
			}
			all = append(all, suspect{name, h.Object, score, exact})
		}
		passed = passed || name == j.at
	}
	return all
}
