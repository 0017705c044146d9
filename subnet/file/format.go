package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// document is the whole file. Entries stay as they are until one is replaced: what this version of Twill does
// not understand is not lost.
type document struct {
	Leases []json.RawMessage `json:"leases"`
}

type record struct {
	Node    string  `json:"node"`
	Backend string  `json:"backend,omitempty"`
	Stacks  []stack `json:"stacks"`
}

type stack struct {
	Subnet   netip.Prefix    `json:"subnet"`
	Underlay netip.Addr      `json:"underlay"`
	Data     json.RawMessage `json:"data,omitempty"`
}

// Parse reads a file's leases, in the file's order, and the entries that cannot be read. A file that is not of
// the format at all is an error.
func Parse(data []byte) ([]subnet.Lease, []subnet.Skip, error) {
	doc, err := parse(data)
	if err != nil {
		return nil, nil, err
	}
	leases, skips := doc.leases()
	return leases, skips, nil
}

// Format returns the file that holds the leases.
func Format(leases []subnet.Lease) ([]byte, error) {
	doc := document{Leases: []json.RawMessage{}}
	for _, l := range leases {
		entry, err := encode(l)
		if err != nil {
			return nil, err
		}
		doc.Leases = append(doc.Leases, entry)
	}
	return doc.format()
}

func (d document) format() ([]byte, error) {
	data, err := json.MarshalIndent(d, "", "  ")
	return append(data, '\n'), err
}

func parse(data []byte) (document, error) {
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return document{}, fmt.Errorf(`not a file of leases: %w: want {"leases": […]}`, err)
	}
	if doc.Leases == nil {
		return document{}, errors.New(`not a file of leases: the key "leases" is missing: want {"leases": […]}`)
	}
	return doc, nil
}

// leases returns the entries in their order. Of two with the same node the earlier one counts.
func (d document) leases() (leases []subnet.Lease, skips []subnet.Skip) {
	seen := map[string]bool{}
	for i, entry := range d.Leases {
		l, err := decode(entry)
		if err == nil && seen[l.Node] {
			err = errors.New("the node has an earlier entry")
		}
		if err != nil {
			skips = append(skips, subnet.Skip{Node: entryName(i, entry), Code: subnet.Unreadable, Detail: err.Error()})
			continue
		}
		seen[l.Node] = true
		leases = append(leases, l)
	}
	return leases, skips
}

// find returns the index of the node's first entry, malformed or not, or -1.
func (d document) find(node string) int {
	for i, entry := range d.Leases {
		if nodeOf(entry) == node {
			return i
		}
	}
	return -1
}

func entryName(i int, entry json.RawMessage) string {
	if node := nodeOf(entry); subnet.CheckNode(node) == nil {
		return node
	}
	return fmt.Sprintf("entry %d", i+1)
}

// nodeOf returns the entry's node, if that alone can be read.
func nodeOf(entry json.RawMessage) string {
	var named struct {
		Node string `json:"node"`
	}
	if json.Unmarshal(entry, &named) != nil {
		return ""
	}
	return named.Node
}

func decode(entry json.RawMessage) (subnet.Lease, error) {
	var r record
	if err := json.Unmarshal(entry, &r); err != nil {
		return subnet.Lease{}, err
	}
	if r.Node == "" {
		return subnet.Lease{}, errors.New("the key node is missing")
	}
	if err := subnet.CheckNode(r.Node); err != nil {
		return subnet.Lease{}, err
	}
	l := subnet.Lease{Node: r.Node, Backend: r.Backend}
	for _, s := range r.Stacks {
		if err := s.check(); err != nil {
			return subnet.Lease{}, err
		}
		if _, ok := l.Stack(netstate.FamilyOf(s.Subnet.Addr())); ok {
			return subnet.Lease{}, fmt.Errorf("subnet %s is the second one of its address family", s.Subnet)
		}
		l.Stacks = append(l.Stacks, subnet.Stack{Subnet: s.Subnet, Underlay: s.Underlay, Data: s.Data})
	}
	switch {
	case len(l.Stacks) == 0:
		return subnet.Lease{}, errors.New("the key stacks is missing or empty")
	case len(l.Stacks) == 2 && l.Stacks[0].Family() != netstate.IPv4:
		l.Stacks[0], l.Stacks[1] = l.Stacks[1], l.Stacks[0]
	}
	return l, nil
}

func (s stack) check() error {
	switch {
	case !s.Subnet.IsValid():
		return errors.New("the key subnet is missing")
	case !s.Underlay.IsValid():
		return fmt.Errorf("the key underlay of subnet %s is missing", s.Subnet)
	case s.Subnet != s.Subnet.Masked() || s.Subnet.Addr().Is4In6():
		return fmt.Errorf("subnet %s has host bits set: want %s", s.Subnet, s.Subnet.Masked())
	case netstate.FamilyOf(s.Subnet.Addr()) != netstate.FamilyOf(s.Underlay),
		s.Underlay.Is4In6(), s.Underlay.Zone() != "":
		return fmt.Errorf("underlay %s is not an address of subnet %s's family", s.Underlay, s.Subnet)
	}
	return nil
}

func encode(l subnet.Lease) (json.RawMessage, error) {
	r := record{Node: l.Node, Backend: l.Backend}
	for _, s := range l.Stacks {
		r.Stacks = append(r.Stacks, stack{Subnet: s.Subnet, Underlay: s.Underlay, Data: s.Data})
	}
	entry, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the lease of node %q: %w", l.Node, err)
	}
	return entry, nil
}
