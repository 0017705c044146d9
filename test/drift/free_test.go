//go:build soak

package drift

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/attributes"
)

// fate returns what the product's tables say becomes of an attribute, 0 if they do not have it.
func (a attribute) fate() attributes.Fate {
	if strings.HasPrefix(a.object, "qdisc ") { // tables have it as an attribute of the link
		return attribute{object: "link", id: 6}.fate()
	}
	_, row, _ := a.row()
	return row.Fate
}

// isFree reports whether an attribute may have the value that it got.
func (c change) isFree() bool {
	if path, ok := strings.CutPrefix(c.object, "sysctl "); ok {
		return freeParameter(path, strings.TrimSpace(c.after))
	}
	_, row, _ := c.row()
	asNew := row.Fate == attributes.Pinned && row.Field == "" && row.Value == 0 && c.after == ""
	return c.fate() == attributes.Free || asNew
}

// freeParameter reports whether a parameter of one of our devices may have a value. Those of the pods' ports may have
// any: the bridge takes their packets before these are looked at.
func freeParameter(path, value string) bool {
	dir, name := filepath.Split(path)
	dev := filepath.Base(dir)
	family, device := netstate.IPv4, netstate.Object(netstate.VXLAN{Name: dev})
	if strings.HasPrefix(path, "net/ipv6/") {
		family = netstate.IPv6
	}
	switch {
	case dev == bridge:
		device = netstate.Bridge{Name: dev}
	case !overlay(dev):
		return strings.Contains(path, "/"+dev+"/") && strings.HasPrefix(dev, "veth")
	case dev != "flannel0" && (family == netstate.IPv6) != strings.Contains(dev, "-v6"):
		return true // it has no packets of that family
	}
	for _, kept := range backend.DeviceSysctls(device, family) {
		if kept.Name == path {
			return kept.Observed(value) == kept
		}
	}
	return slices.ContainsFunc(attributes.Parameters, func(t attributes.Table) bool {
		return strings.Contains(t.Where, filepath.Dir(filepath.Clean(dir))) &&
			slices.ContainsFunc(t.Rows, func(a attributes.Attribute) bool {
				return a.Name == name && (a.Fate == attributes.Free || !keptElsewhere(dev, name))
			})
	})
}

// keptElsewhere reports whether a parameter is kept for that device by its backend or the bridge.
func keptElsewhere(dev, name string) bool {
	return name == "rp_filter" && overlay(dev) || name == "accept_dad" && dev == bridge
}

// nobodys matches objects that are not ours, though they come with what is, and that Documentation/drift.md has as free:
// the kernel's route to a tunnel's own IPv6 address, a bridge's entry for a port's own address; and default routes,
// which a move may replace.
var nobodys = regexp.MustCompile(`^route \S+/128 type 1 tos 0 table 254 .*dev flannel|^fdb 02\w* .* of veth|^route invalid IP/0 `)

// bound returns the changes that may not stay: those of attributes that are not free for others, and of objects that
// are not somebody else's. What is derived may differ where something free does.
func bound(changes []change) []change {
	others := map[string]bool{}
	for _, c := range changes {
		others[c.object] = others[c.object] || c.name == "present" && c.before == "" && !ours(c.object, changes)
	}
	may := slices.ContainsFunc(changes, change.isFree)
	return slices.DeleteFunc(slices.Clone(changes), func(c change) bool {
		return others[c.object] || c.isFree() || nobodys.MatchString(c.object) || may && c.fate() == attributes.Derived
	})
}

// ours reports whether an object that was added is one that the agent would have to remove: what carries its mark, and
// what is on its devices or in its tables.
func ours(object string, changes []change) bool {
	kind, name, _ := strings.Cut(object, " ")
	switch kind {
	case "route":
		return slices.ContainsFunc(changes, func(c change) bool { // by rtm_protocol
			return c.object == object && c.place == attributes.Header && c.id == 5 && c.after == protocol
		})
	case "proxy": // the tables list them as free, with the neighbours' flags
		return false
	case "neigh": // on a device without hardware addresses the kernel makes them
		return strings.Contains(name, " of flannel.") || strings.Contains(name, " of flannel-v6.")
	case "fdb":
		return strings.Contains(name, " of flannel")
	case "addr":
		return strings.Contains(name, " of flannel") || strings.HasSuffix(name, " of "+bridge)
	case "nft":
		return strings.Contains(name, "flannel") || strings.Contains(name, "FLANNEL") || strings.Contains(name, "TWILL")
	}
	return kind != "rule"
}

// protocol is how our routes are marked, as a picture has it.
const protocol = "74"
