package subnet

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/twill-net/twill/netstate"
)

// earlierKey is the key of backend-data with the subnets that a node had before, and of which it still has pods. flannel ignores
// keys that it does not know.
const earlierKey = "Earlier"

// mostEarlier bounds how many of them are published and read for an address family.
const mostEarlier = 2

// Earlier returns the subnets of which the node still has pods, beside that of its lease: at most two, masked.
func (s Stack) Earlier() (list []netip.Prefix) {
	if !bytes.Contains(s.Data, []byte(earlierKey)) {
		return nil
	}
	var fields map[string]json.RawMessage // a struct would also take the key in small letters, which WithEarlier leaves
	var said []netip.Prefix
	if json.Unmarshal(s.Data, &fields) != nil || json.Unmarshal(fields[earlierKey], &said) != nil {
		return nil
	}
	for _, p := range said {
		if p.IsValid() && p == p.Masked() && netstate.FamilyOf(p.Addr()) == s.Family() && len(list) < mostEarlier {
			list = append(list, p)
		}
	}
	return list
}

// EarlierIn returns the subnets of before, of which the lease's node still has pods, that the pools could give to another one.
func (l Lease) EarlierIn(pools []Pool) (list []netip.Prefix) {
	for _, s := range l.Stacks {
		for _, e := range s.Earlier() {
			if slices.ContainsFunc(pools, func(p Pool) bool { return p.Keeps(e) }) {
				list = append(list, e)
			}
		}
	}
	return list
}

// WithEarlier returns the stack with these subnets, of its family and without its own, as those of which the node still has pods.
// Data that are no JSON object stay as they are: they can say no more.
func (s Stack) WithEarlier(subnets []netip.Prefix) Stack {
	var list []netip.Prefix
	for _, p := range subnets {
		if netstate.FamilyOf(p.Addr()) == s.Family() && p != s.Subnet && !slices.Contains(list, p) && len(list) < mostEarlier {
			list = append(list, p)
		}
	}
	if slices.Equal(list, s.Earlier()) {
		return s
	}
	fields := map[string]json.RawMessage{}
	if len(s.Data) > 0 && json.Unmarshal(s.Data, &fields) != nil {
		return s
	}
	delete(fields, earlierKey)
	if len(list) > 0 {
		if fields == nil { // they were null
			fields = map[string]json.RawMessage{}
		}
		fields[earlierKey], _ = json.Marshal(list) // prefixes always have a text
	}
	s.Data = nil
	if len(fields) > 0 {
		s.Data, _ = json.Marshal(fields) // of what was read from JSON
	}
	return s
}

// After returns the lease with the subnets of the one that the node published last, if they are others, as those of which it
// may still have pods. The node's agent knows which it has, and says so when it publishes next.
func (l Lease) After(last Lease) Lease {
	l.Stacks = slices.Clone(l.Stacks)
	for i, s := range l.Stacks {
		if old, ok := last.Stack(s.Family()); ok && old.Subnet.IsValid() && old.Subnet != s.Subnet {
			l.Stacks[i] = s.WithEarlier(append([]netip.Prefix{old.Subnet}, old.Earlier()...))
		}
	}
	return l
}

// WithEarlier returns the snapshot with a lease more for each node that still has pods of subnets before its own. They come behind
// all others, since they lose to every lease, this node's first.
func (s Snapshot) WithEarlier() Snapshot {
	if n := len(s.Peers); n > 0 && s.Peers[n-1].Earlier {
		return s // it has them
	}
	var all []Lease
	add := func(lease Lease) {
		earlier := Lease{Node: lease.Node, Backend: lease.Backend, Earlier: true}
		for _, stack := range lease.Stacks {
			for _, p := range stack.Earlier() {
				earlier.Stacks = append(earlier.Stacks, Stack{p, stack.Underlay, stack.Data})
			}
		}
		if len(earlier.Stacks) > 0 {
			all = append(all, earlier)
		}
	}
	add(s.Local)
	for _, lease := range s.Peers {
		add(lease)
	}
	if len(all) > 0 {
		s.Peers = slices.Concat(s.Peers, all)
	}
	return s
}
