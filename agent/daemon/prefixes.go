package daemon

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/twill-net/twill/agent/masquerade"
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
		n, err := masquerade.ParseNetwork(text)
		if err != nil {
			return err
		}
		*p = append(*p, n)
	}
	return nil
}

// addresses is a flag that names addresses, likewise.
type addresses []netip.Addr

func (a *addresses) String() string {
	var texts []string
	for _, one := range *a {
		texts = append(texts, one.String())
	}
	return strings.Join(texts, ",")
}

// Set adds the addresses in s.
func (a *addresses) Set(s string) error {
	for text := range strings.SplitSeq(s, ",") {
		one, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("%q is not an address: want one such as 10.96.0.10", text)
		}
		*a = append(*a, one)
	}
	return nil
}
