package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/lab"
)

// siteFlags say how single nodes are plugged in. A value without NODE= is about all nodes.
type siteFlags struct {
	names, nat, vagrant   []string
	split                 bool
	mtus, subnets, agents []string
}

func (f *siteFlags) register(c *cobra.Command) {
	fs := c.Flags()
	fs.StringSliceVar(&f.names, "names", nil, "names of the first nodes; the others are node1, node2, …")
	fs.StringSliceVar(&f.nat, "nat", nil, "nodes behind a router that translates addresses")
	fs.StringSliceVar(&f.vagrant, "vagrant", nil, "nodes with a first interface that has the default route, and the same address everywhere")
	fs.BoolVar(&f.split, "split", false, "IPv6 on an interface of its own, on all nodes (--family dual)")
	fs.StringArrayVar(&f.mtus, "link-mtu", nil, "[NODE=]BYTES: the MTU of a node's cable; repeatable")
	fs.StringArrayVar(&f.subnets, "subnet", nil, "NODE=PREFIX: keep a subnet for a node; repeatable")
	fs.StringArrayVar(&f.agents, "agent-flag", nil, "[NODE=]--FLAG=VALUE: a flag for the agents; repeatable")
}

// complete puts the flags into the spec.
func (f *siteFlags) complete(spec *lab.Spec) error {
	spec.Names = f.names
	sites := sites{spec, map[string]lab.Site{}}
	sites.alter("", func(s *lab.Site) { s.Split = f.split })
	for _, node := range f.nat {
		sites.alter(node, func(s *lab.Site) { s.NAT = true })
	}
	for _, node := range f.vagrant {
		sites.alter(node, func(s *lab.Site) { s.Vagrant = true })
	}
	var errs []error
	for _, value := range f.mtus {
		node, text := nodeOf(value)
		mtu, err := strconv.Atoi(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("--link-mtu %s: want [NODE=]BYTES", value))
		}
		sites.alter(node, func(s *lab.Site) { s.MTU = mtu })
	}
	for _, value := range f.subnets {
		node, text := nodeOf(value)
		p, err := netip.ParsePrefix(text)
		if err != nil || node == "" {
			errs = append(errs, fmt.Errorf("--subnet %s: want NODE=PREFIX", value))
		}
		sites.alter(node, func(s *lab.Site) { s.Subnets = append(s.Subnets, p) })
	}
	for _, value := range f.agents {
		node, text := nodeOf(value)
		if !strings.HasPrefix(text, "--") {
			errs = append(errs, fmt.Errorf("--agent-flag %s: want [NODE=]--FLAG=VALUE", value))
		}
		sites.alter(node, func(s *lab.Site) { s.Flags = append(s.Flags, text) })
	}
	if len(sites.of) > 0 {
		spec.Sites = sites.of
	}
	return errors.Join(errs...)
}

// nodeOf takes NODE= off a value; a flag, which has an = too, begins with dashes.
func nodeOf(value string) (node, rest string) {
	if node, rest, ok := strings.Cut(value, "="); ok && !strings.HasPrefix(value, "-") {
		return node, rest
	}
	return "", value
}

// sites are those of a spec while they are made.
type sites struct {
	spec *lab.Spec
	of   map[string]lab.Site
}

// alter changes one node's site, or every node's. Sites that say nothing are left out, so that a lab is recognised by the
// flags that it was brought up with.
func (s sites) alter(node string, set func(*lab.Site)) {
	nodes := []string{node}
	if node == "" {
		nodes = s.spec.NodeNames()
	}
	for _, n := range nodes {
		site := s.of[n]
		set(&site)
		if !site.IsZero() {
			s.of[n] = site
		}
	}
}
