package facts

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/firewall"
)

// chains reads all firewall rules of this namespace but Twill's, and those of network policies: those of iptables, and
// nft's other chains. unread names what was not read. A program that is not installed is missed only if the kernel has
// chains for it.
func chains(withIPv6 bool) (all []rules.Chain, unread []string) {
	all, missing, unread := saves(withIPv6)
	saved := len(missing)+len(unread) == 0
	isOther := func(c rules.Chain) bool { return !isOurs(c) && (!saved || !isIPTables(c)) }
	there, err := present()
	if len(missing) > 0 && (err != nil || hasLegacy() || slices.ContainsFunc(there, isIPTables)) {
		unread = append(unread, missing...)
	}
	out, nftErr := exec.Command("nft", "-j", "list", "ruleset").Output()
	switch {
	case errors.Is(nftErr, exec.ErrNotFound) && err == nil && !slices.ContainsFunc(there, isOther):
		return all, unread
	case nftErr != nil:
		return all, append(unread, "nft: "+nftErr.Error())
	}
	native, err := rules.ParseNFT(out)
	if err != nil {
		unread = append(unread, err.Error())
	}
	for _, c := range native {
		if isOther(c) {
			all = append(all, c)
		}
	}
	return all, unread
}

// saves reads the rules of iptables. missing are the programs that are not installed, unread those that failed.
func saves(withIPv6 bool) (all []rules.Chain, missing, unread []string) {
	tools := []struct{ name, family string }{{"iptables-save", "ip"}, {"ip6tables-save", "ip6"}}
	if !withIPv6 {
		tools = tools[:1]
	}
	for _, tool := range tools {
		out, err := exec.Command(tool.name).Output()
		switch {
		case errors.Is(err, exec.ErrNotFound):
			missing = append(missing, fmt.Sprintf("%s: %v", tool.name, err))
		case err != nil:
			unread = append(unread, fmt.Sprintf("%s: %v", tool.name, err))
		default:
			all = append(all, rules.ParseSave(tool.family, string(out))...)
		}
	}
	return all, missing, unread
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
