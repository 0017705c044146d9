package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
)

// variant is one of the ways whose cost is measured.
type variant struct {
	backend string
	fast    bool // with the fast path
	family  netstate.Family
}

// path names what carries the pods' packets.
func (v variant) path() string {
	if v.fast {
		return "fast"
	}
	return "plain"
}

// words are what a choice of variants may name.
func (v variant) words() []string {
	return []string{v.backend, v.path(), strings.ToLower(v.family.String())}
}

func (v variant) String() string { return strings.Join(v.words(), "/") }

// group is what the variants of one row of ratios and of one group of bars share.
func (v variant) group() group { return group{v.backend, v.family} }

// group is a backend with an address family: its plain and its fast path are compared.
type group struct {
	backend string
	family  netstate.Family
}

func (g group) String() string { return g.backend + " " + g.family.String() }

func (g group) variant(fast bool) variant { return variant{g.backend, fast, g.family} }

// allVariants returns all variants, the two paths of a group side by side.
func allVariants() []variant {
	var all []variant
	for _, backend := range []string{"vxlan", "host-gw"} {
		for _, family := range netstate.Families {
			all = append(all, variant{backend, false, family}, variant{backend, true, family})
		}
	}
	return all
}

// choose returns the variants that a list names: "vxlan/fast,host-gw/plain/ipv4" are three. An empty one names all.
func choose(list string) ([]variant, error) {
	all := allVariants()
	if list == "" {
		return all, nil
	}
	chosen := map[variant]bool{}
	for item := range strings.SplitSeq(list, ",") {
		fits := func(v variant) bool {
			return !slices.ContainsFunc(strings.Split(item, "/"), func(word string) bool {
				return !slices.Contains(v.words(), word)
			})
		}
		if !slices.ContainsFunc(all, fits) {
			return nil, fmt.Errorf("variant %q: want words of vxlan or host-gw, plain or fast, ipv4 or ipv6, with slashes between: "+
				"vxlan/fast", item)
		}
		for _, v := range all {
			chosen[v] = chosen[v] || fits(v)
		}
	}
	return slices.DeleteFunc(all, func(v variant) bool { return !chosen[v] }), nil
}

// turned returns the variants in the order of a round, which begins one variant further than the round before: none has a
// place of its own.
func turned(all []variant, round int) []variant {
	first := round % len(all)
	return slices.Concat(all[first:], all[:first])
}
