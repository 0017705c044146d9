// Package isolation says what the rules by which a node isolates its pods do with a connection: from what the kernel has
// of them, whatever network policies there are. It is pure.
package isolation

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
)

// Listed returns the chains of policies in what "nft -n -s -t list table" prints, in netstate's grammar of rules. A line
// that is not in the grammar stays as it is; netstate/filter knows whether the kernel's rules are what a text says.
func Listed(family netstate.Family, listing string) (chains []netstate.Filter) {
	var name string
	var lines []string
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case word == "chain":
			name, lines = strings.TrimSuffix(rest, " {"), nil
		case line == "}":
			if policy.IsChain(name) {
				chains = append(chains, netstate.Filter{Family: family, Name: name, Rules: strings.Join(lines, "\n")})
			}
			name = ""
		case name != "":
			lines = append(lines, translate(family, line))
		}
	}
	return chains
}

// fields are nft's names of what netstate's grammar calls otherwise. The family of an address goes without saying.
var fields = strings.NewReplacer("ip saddr", "saddr", "ip daddr", "daddr", "ip6 saddr", "saddr", "ip6 daddr", "daddr",
	"meta l4proto", "proto", "th dport", "port")

// logs is how nft lists a rule's end "log".
var logs = regexp.MustCompile(fmt.Sprintf(`limit rate %d/second burst %d packets log prefix "([^" ]+)" group %d$`,
	netstate.LogRate, netstate.LogBurst, netstate.LogGroup))

// translate writes a rule of nft's in netstate's grammar.
func translate(family netstate.Family, line string) string {
	words := strings.Fields(logs.ReplaceAllString(fields.Replace(line), "log $1"))
	for i := 1; i < len(words); i++ {
		if words[i-1] != "saddr" && words[i-1] != "daddr" {
			continue
		}
		if a, err := netip.ParseAddr(words[i]); err == nil {
			words[i] += "/" + strconv.Itoa(family.Bits())
			if a.Is6() != (family == netstate.IPv6) {
				return line
			}
		}
	}
	return strings.Join(words, " ")
}
