package facts

import (
	"fmt"
	"os/exec"
	"slices"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/doctor/rules/nft"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/firewall"
)

// chains reads all firewall rules of this namespace but Twill's, and those of network policies: those of iptables, and
// nftables' other chains, of which the kernel says whose they are. Only the programs of iptables are started, if it has rules.
// unread names what was not read.
func chains(withIPv6 bool) (all []rules.Chain, unread []string) {
	there, err := nft.List()
	saved := true
	if err != nil || hasLegacy() || slices.ContainsFunc(there, isIPTables) {
		all, unread = saves(withIPv6)
		saved = len(unread) == 0
	}
	if err == nil {
		var others []rules.Chain
		others, err = nft.Read(func(c rules.Chain) bool { return !isOurs(c) && (!saved || !isIPTables(c)) })
		all = append(all, others...)
	}
	if err != nil {
		unread = append(unread, "the chains of nf_tables: "+err.Error())
	}
	return all, unread
}

// saves reads the rules of iptables. unread are the programs that are not installed, or failed.
func saves(withIPv6 bool) (all []rules.Chain, unread []string) {
	tools := []struct{ name, family string }{{"iptables-save", "ip"}, {"ip6tables-save", "ip6"}}
	if !withIPv6 {
		tools = tools[:1]
	}
	for _, tool := range tools {
		out, err := exec.Command(tool.name).Output()
		if err != nil {
			unread = append(unread, fmt.Sprintf("%s: %v", tool.name, err))
			continue
		}
		all = append(all, rules.ParseSave(tool.family, string(out))...)
	}
	return all, unread
}

// isIPTables reports whether iptables shows a chain of nft's.
func isIPTables(c rules.Chain) bool {
	return c.Family != "inet" && slices.Contains(rules.Tables, c.Table)
}

// isOurs reports whether a chain is compared object by object.
func isOurs(c rules.Chain) bool {
	return c.Table == netstate.FilterTable || firewall.IsOurs(c.Family, c.Table, c.Name)
}

// hasLegacy reports whether the kernel has tables of the older iptables.
func hasLegacy() bool {
	return read("/proc/thread-self/net/ip_tables_names")+read("/proc/thread-self/net/ip6_tables_names") != ""
}
