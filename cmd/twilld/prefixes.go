package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// prefixes is a flag that names networks of both families: repeated, or separated by commas.
type prefixes []netip.Prefix

func (p *prefixes) String() string {
	var texts []string
	for _, n := range *p {
		texts = append(texts, n.String())
	}
	return strings.Join(texts, ",")
}

// Set adds the networks in s.
func (p *prefixes) Set(s string) error {
	for text := range strings.SplitSeq(s, ",") {
		n, err := netip.ParsePrefix(strings.TrimSpace(text))
		switch {
		case err != nil || n.Addr().Is4In6():
			return fmt.Errorf("%q is not a network: want one such as 10.0.0.0/8 or fd00::/8", text)
		case n != n.Masked():
			return fmt.Errorf("%s has host bits set: want %s", n, n.Masked())
		}
		*p = append(*p, n)
	}
	return nil
}
