package kube

import (
	"bytes"
	"iter"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// The podCIDRs are in spec, but their values are in the metadata too: spec.podCIDRs is a set, and the API server's
// record of who wrote which field names the members of a set by their values:
//
//	"f:spec":{"f:podCIDR":{},"f:podCIDRs":{".":{},"v:\"10.244.1.0/24\"":{}}}
//
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management, FieldsV1). They cannot be
// changed once they are there, so the record is never old. It can be missing, and whoever may write a Node's metadata
// can forge it: see disputed.

// The numbers of the messages ManagedFieldsEntry and FieldsV1; see wire.go.
const managedFields, managedRaw = 7, 1

var podCIDRsField = []byte(`"f:podCIDRs":{`)

// tell reads a ManagedFieldsEntry.
func (n *node) tell(data []byte) error {
	return each(data, func(number protowire.Number, content []byte) error {
		if number != managedFields {
			return nil
		}
		return each(content, func(number protowire.Number, content []byte) error {
			if number == managedRaw {
				n.readFields(content)
			}
			return nil
		})
	})
}

// readFields adds the values that a record of fields has; a label or annotation named podCIDRs has none.
func (n *node) readFields(fields []byte) {
	for {
		_, rest, found := bytes.Cut(fields, podCIDRsField)
		if !found {
			return
		}
		fields = rest
		for {
			value, rest, ok := nextMember(fields)
			if !ok {
				break
			}
			if fields = rest; len(value) > 0 && n.told == "" {
				n.told = string(value)
			} else if len(value) > 0 && n.told != string(value) {
				n.told += "," + string(value)
			}
		}
	}
}

// nextMember cuts off the first member of a set, `"v:\"10.244.1.0/24\"":{}`, or the set itself, `".":{}`, whose value
// is empty.
func nextMember(fields []byte) (value, rest []byte, ok bool) {
	fields = bytes.TrimPrefix(fields, []byte(","))
	if rest, ok := bytes.CutPrefix(fields, []byte(`".":{}`)); ok {
		return nil, rest, true
	}
	fields, ok = bytes.CutPrefix(fields, []byte(`"v:\"`))
	if !ok {
		return nil, nil, false
	}
	return bytes.Cut(fields, []byte(`\"":{}`))
}

// plausible says whether what n's metadata tells can be n's podCIDRs: at most one of each family, inside of the
// network, and nothing else.
func (a annotations) plausible(n *node) bool {
	seen := map[bool]bool{}
	for text := range strings.SplitSeq(n.told, ",") {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() || seen[p.Addr().Is4()] || !a.inNetwork(p) {
			return false
		}
		seen[p.Addr().Is4()] = true
	}
	return true
}

// inNetwork is true for families that the network config does not have: such a subnet is not used.
func (a annotations) inNetwork(p netip.Prefix) bool {
	for _, f := range a.families {
		if f.is4 == p.Addr().Is4() {
			return f.network.Contains(p.Addr()) && p.Bits() >= f.network.Bits()
		}
	}
	return true
}

// disputed are the nodes that would have to share a subnet with another one, if what new nodes' metadata tells were
// true: these nodes have to be read. So nobody gets another node's traffic by a forged record; whoever could forge one
// can at most have what is nobody's. Both are podCIDRs by the node's name; no node may be in both.
func disputed(told map[string]string, known iter.Seq2[string, string]) map[string]bool {
	d := dispute{map[netip.Prefix]string{}, map[extent]bool{}, map[string]bool{}}
	for name, cidrs := range told {
		for p := range prefixes(cidrs) {
			d.claim(name, p)
		}
	}
	for name, cidrs := range told {
		for p := range prefixes(cidrs) {
			d.within(name, p)
		}
	}
	for name, cidrs := range known {
		for p := range prefixes(cidrs) {
			d.within(name, p)
			d.around(name, p)
		}
	}
	return d.found
}

// extent is a prefix without its address.
type extent struct {
	is4  bool
	bits int
}

func extentOf(p netip.Prefix) extent { return extent{p.Addr().Is4(), p.Bits()} }

// dispute is what disputed knows as yet.
type dispute struct {
	claims  map[netip.Prefix]string // by whom
	extents map[extent]bool         // of the claims: one for each family, but for odd clusters
	found   map[string]bool
}

func (d *dispute) claim(name string, p netip.Prefix) {
	if other, ok := d.claims[p]; ok {
		d.found[name], d.found[other] = true, true
	}
	d.claims[p], d.extents[extentOf(p)] = name, true
}

// within finds claims that p is in.
func (d *dispute) within(name string, p netip.Prefix) {
	for e := range d.extents {
		if e.is4 != p.Addr().Is4() || e.bits > p.Bits() {
			continue
		}
		if other, ok := d.claims[netip.PrefixFrom(p.Addr(), e.bits).Masked()]; ok && other != name {
			d.found[name], d.found[other] = true, true
		}
	}
}

// around finds claims that are in p.
func (d *dispute) around(name string, p netip.Prefix) {
	for e := range d.extents {
		if e.is4 != p.Addr().Is4() || e.bits <= p.Bits() {
			continue
		}
		for q, other := range d.claims {
			if p.Overlaps(q) {
				d.found[name], d.found[other] = true, true
			}
		}
	}
}

// prefixes are those that can be read of a list with commas.
func prefixes(cidrs string) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for text := range strings.SplitSeq(cidrs, ",") {
			if p, err := netip.ParsePrefix(text); err == nil && !yield(p.Masked()) {
				return
			}
		}
	}
}
