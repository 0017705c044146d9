package plugin

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
)

const (
	wantNetwork = "a network such as 10.0.0.0/8"
	wantAddress = "an address such as 10.244.1.9"
)

func (c *config) readRoutes(f *fields) {
	for _, r := range f.items("routes", f.Raw("routes"), `a list of {"dst": "10.0.0.0/8", "gw": "…"}, gw being optional`) {
		var dst netip.Prefix
		var via netip.Addr
		if !r.Has("dst") {
			r.bad("dst", []byte("missing"), wantNetwork)
			continue
		}
		good := r.get("dst", &dst, wantNetwork, func() bool { return dst.IsValid() })
		r.get("gw", &via, "an address of the same family as dst", func() bool {
			return !good || !via.IsValid() || netstate.FamilyOf(via) == netstate.FamilyOf(dst.Addr())
		})
		c.warnings = append(c.warnings, r.unknown()...)
		if good {
			c.routes = append(c.routes, wire.Route{Dst: dst.Masked(), Via: via})
		}
	}
}

// readRanges puts range sets before those that were read until now.
func (c *config) readRanges(f *fields, key string, raw json.RawMessage) {
	const want = `a list of lists of {"subnet", "rangeStart", "rangeEnd", "gateway"}`
	var sets []json.RawMessage
	if json.Unmarshal(raw, &sets) != nil {
		f.bad(key, raw, want)
	}
	var all []ipam.RangeSet
	for i, set := range sets {
		var rs ipam.RangeSet
		for _, item := range f.items(fmt.Sprintf("%s[%d]", key, i), set, "one of "+want) {
			if r, ok := c.readRange(item); ok {
				rs = append(rs, r)
			}
			c.warnings = append(c.warnings, item.unknown()...)
		}
		if len(rs) > 0 {
			all = append(all, rs)
		}
	}
	c.ranges = append(all, c.ranges...)
}

// readOneRange reads the older form of one range, which counts before the others.
func (c *config) readOneRange(f *fields) {
	if f.Has("subnet") {
		if r, ok := c.readRange(f); ok {
			c.ranges = append([]ipam.RangeSet{{r}}, c.ranges...)
		}
		return
	}
	f.Take("subnet")
	for _, key := range []string{"rangeStart", "rangeEnd", "gateway"} {
		if f.Raw(key) != nil {
			c.warnings = append(c.warnings, fmt.Sprintf("%s%s has no effect without %ssubnet", f.path, key, f.path))
		}
	}
}

// readRange reads one range, and warns of addresses in it that no pod can have.
func (c *config) readRange(f *fields) (ipam.Range, bool) {
	var subnet netip.Prefix
	var first, last, gateway netip.Addr
	before := len(*f.errs)
	f.get("subnet", &subnet, wantNetwork)
	f.get("rangeStart", &first, wantAddress)
	f.get("rangeEnd", &last, wantAddress)
	f.get("gateway", &gateway, wantAddress)
	if len(*f.errs) > before {
		return ipam.Range{}, false
	}
	r, err := ipam.NewRange(subnet, first, last, gateway)
	if err != nil {
		*f.errs = append(*f.errs, fmt.Errorf("%s: %w", strings.TrimSuffix(f.path, "."), err))
		return r, false
	}
	if first.IsValid() && first != r.First {
		c.warnings = append(c.warnings, fmt.Sprintf("%srangeStart %s is no pod's: the range begins at %s", f.path, first, r.First))
	}
	if last.IsValid() && last != r.Last {
		c.warnings = append(c.warnings, fmt.Sprintf("%srangeEnd %s is no pod's: the range ends at %s", f.path, last, r.Last))
	}
	return r, true
}
