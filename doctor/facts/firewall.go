package facts

import (
	"os/exec"
	"slices"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/firewall"
)

// chains reads all firewall rules of this namespace but Twill's, and those of network policies: those of iptables, and nft's other chains. unread
// names the programs that failed.
func chains(withIPv6 bool) (all []rules.Chain, unread []string) {
	tools := []struct{ name, family string }{{"iptables-save", "ip"}, {"ip6tables-save", "ip6"}}
	if !withIPv6 {
		tools = tools[:1]
	}
	for _, tool := range tools {
		out, err := exec.Command(tool.name).Output()
		if err != nil {
			unread = append(unread, tool.name+": "+err.Error())
			continue
		}
		all = append(all, rules.ParseSave(tool.family, string(out))...)
	}
	saved := len(unread) == 0
	out, err := exec.Command("nft", "-j", "list", "ruleset").Output()
	if err != nil {
		return all, append(unread, "nft: "+err.Error())
	}
	native, err := rules.ParseNFT(out)
	if err != nil {
		unread = append(unread, err.Error())
	}
	for _, c := range native {
		isIPTables := saved && c.Family != "inet" && slices.Contains(rules.Tables, c.Table)
		isOurs := c.Table == netstate.FilterTable || firewall.IsOurs(c.Family, c.Table, c.Name)
		if !isIPTables && !isOurs { // ours are compared object by object
			all = append(all, c)
		}
	}
	return all, unread
}
