package firewall

import (
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

func TestPick(t *testing.T) {
	yes, no := true, false
	type pick struct {
		setup      string
		configured *bool
		want       netstate.Mode
	}
	tests := map[string]pick{
		"new":                 {"true", nil, netstate.NFTables},
		"legacy-empty":        {"iptables-legacy -S", nil, netstate.NFTables},
		"legacy-in-use":       {"ip6tables-legacy -A FORWARD -j DROP", nil, netstate.IPTables},
		"configured-nftables": {"ip6tables-legacy -A FORWARD -j DROP", &yes, netstate.NFTables},
		"configured-iptables": {"true", &no, netstate.IPTables},
		"legacy-flannel": {"iptables-legacy -N FLANNEL-FWD; iptables-legacy -A FORWARD -j FLANNEL-FWD;" +
			"iptables-legacy -A FLANNEL-FWD -j ACCEPT", nil, netstate.NFTables},
		"legacy-chain":   {"iptables-legacy -N FLANNEL-FWD; iptables-legacy -N OTHER", nil, netstate.IPTables},
		"other-variants": {"iptables-nft -A FORWARD -j DROP", nil, netstate.NFTables},
	}
	for table, chain := range map[string]string{
		"filter": "INPUT", "nat": "OUTPUT", "mangle": "INPUT", "raw": "OUTPUT", "security": "INPUT",
	} {
		tests[table+"-empty"] = pick{"iptables-legacy -t " + table + " -S", nil, netstate.NFTables}
		tests[table+"-in-use"] = pick{"iptables-legacy -t " + table + " -A " + chain + " -j ACCEPT", nil, netstate.IPTables}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if !inNamespace(t) {
				return
			}
			need(t, "iptables-nft", "iptables-legacy", "ip6tables-legacy")
			sh(t, test.setup)
			if mode, why, err := Pick(test.configured); mode != test.want || why == "" || err != nil {
				t.Errorf("Pick: got %s, %q, %v; want %s", mode, why, err, test.want)
			}
		})
	}
}

// TestPickUnprivileged: the error says what is missing.
func TestPickUnprivileged(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	runtime.LockOSThread() // not unlocked: the thread has lost its capabilities
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&head, &none[0]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Pick(nil); err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("Pick without capabilities: got %v, want a word about CAP_NET_ADMIN", err)
	}
}
