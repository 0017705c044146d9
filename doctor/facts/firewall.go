package facts

import (
	"fmt"
	"os/exec"
	"slices"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/firewall"
	"github.com/twill-net/twill/netstate/nfnl"
)

// chains reads all firewall rules of this namespace but Twill's, and those of network policies: those of iptables, and
// nft's other chains. The kernel says whose chains there are, and only programs that would show some are started. unread
// names what was not read.
func chains(withIPv6 bool) (all []rules.Chain, unread []string) {
	there, err := present()
	if err != nil {
		unread = append(unread, "the chains of nf_tables: "+err.Error())
	}
	saved := true
	if err != nil || hasLegacy() || slices.ContainsFunc(there, isIPTables) {
		var failed []string
		all, failed = saves(withIPv6)
		saved, unread = len(failed) == 0, append(unread, failed...)
	}
	asked := map[[2]string]bool{}
	isOther := func(c rules.Chain) bool { return !isOurs(c) && (!saved || !isIPTables(c)) }
	for _, c := range there {
		if table := [2]string{c.Family, c.Table}; isOther(c) && !asked[table] {
			asked[table] = true
			native, err := list(c.Family, c.Table)
			if err != nil && !slices.Contains(unread, err.Error()) {
				unread = append(unread, err.Error())
			}
			all = append(all, slices.DeleteFunc(native, func(c rules.Chain) bool { return !isOther(c) })...)
		}
	}
	return all, unread
}

// list reads a table with nft.
func list(family, table string) ([]rules.Chain, error) {
	if !nfnl.IsWord(table) {
		return nil, fmt.Errorf("nft: it cannot name the table %q", table)
	}
	out, err := exec.Command("nft", "-j", "list", "table", family, table).Output()
	if err != nil {
		return nil, fmt.Errorf("nft: %w", err)
	}
	return rules.ParseNFT(out)
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

// present returns nft's chains by their names.
func present() (all []rules.Chain, err error) {
	names, err := firewall.ChainNames()
	for _, n := range names {
		all = append(all, rules.Chain{Family: n.Family, Table: n.Table, Name: n.Name})
	}
	return all, err
}

// hasLegacy reports whether the kernel has tables of the older iptables.
func hasLegacy() bool {
	return read("/proc/thread-self/net/ip_tables_names")+read("/proc/thread-self/net/ip6_tables_names") != ""
}
