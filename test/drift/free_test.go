//go:build soak

package drift

import (
	"slices"
	"strings"

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

// bound returns the changes that may not stay: those of attributes that are not free for others, and of objects that
// are not somebody else's. What is derived may differ where something free does.
func bound(changes []change) []change {
	others := map[string]bool{}
	for _, c := range changes {
		others[c.object] = others[c.object] || c.name == "present" && c.before == "" && !ours(c.object, changes)
	}
	may := slices.ContainsFunc(changes, func(c change) bool { return c.fate() == attributes.Free })
	return slices.DeleteFunc(slices.Clone(changes), func(c change) bool {
		return others[c.object] || c.fate() == attributes.Free || may && c.fate() == attributes.Derived
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
	case "neigh", "fdb", "proxy":
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
