package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Rules of portmap lead ports of the node to the addresses of pods. They can be in three places, and portmap's DEL looks
// into one: in legacy iptables, in iptables over nf_tables, and in a table of nf_tables that newer portmaps can use. Which
// one it was depends on the iptables of whoever ran ADD: the node's, while an agent in a container has its own. So before an
// address is free for another pod all three are searched for what leads to it.

// portRules are the rules of portmap in one place and address family.
type portRules interface {
	// list returns the addresses that rules lead to, and for each the lines that remove those.
	list(ctx context.Context) (map[netip.Addr][]string, error)
	remove(ctx context.Context, lines []string) error
}

const (
	dnatChain  = "CNI-HOSTPORT-DNAT" // of table nat; it leads to a chain CNI-DN-… for each pod
	portsTable = "cni_hostport"      // of nf_tables
)

// portPlaces returns the places that there are on this machine. Nothing comes into being by asking.
func portPlaces() ([]portRules, error) {
	var all []portRules
	chains, err := nftChains()
	for _, f := range []struct {
		ipv6         bool
		family       uint8
		name, tables string
	}{{false, unix.AF_INET, "ip", "/proc/thread-self/net/ip_tables_names"}, {true, unix.AF_INET6, "ip6", "/proc/thread-self/net/ip6_tables_names"}} {
		if chains[nftChain{f.family, "nat", dnatChain}] {
			all = append(all, iptablesPorts{ipv6: f.ipv6, variant: "nft"})
		}
		if tables, err := os.ReadFile(f.tables); err == nil && slices.Contains(strings.Fields(string(tables)), "nat") {
			all = append(all, iptablesPorts{ipv6: f.ipv6, variant: "legacy"})
		}
		if chains[nftChain{f.family, portsTable, "hostports"}] {
			all = append(all, nftPorts{f.name})
		}
	}
	return all, err
}

// leftPorts returns the addresses that any rule leads to.
func leftPorts(ctx context.Context) (map[netip.Addr]bool, error) {
	places, err := portPlaces()
	if err != nil {
		return nil, err
	}
	all := map[netip.Addr]bool{}
	for _, p := range places {
		rules, err := p.list(ctx)
		if err != nil {
			return nil, err
		}
		for a := range rules {
			all[a] = true
		}
	}
	return all, nil
}

// removePorts removes the rules that lead to the addresses, wherever they are.
func removePorts(ctx context.Context, addrs []netip.Addr) error {
	places, err := portPlaces()
	if err != nil {
		return err
	}
	for _, p := range places {
		rules, err := p.list(ctx)
		if err != nil {
			return err
		}
		var lines []string
		for _, a := range addrs {
			lines = append(lines, rules[a]...)
		}
		if len(lines) == 0 {
			continue
		}
		if err := p.remove(ctx, lines); err != nil {
			return err
		}
	}
	return nil
}

// iptablesPorts are those of one iptables.
type iptablesPorts struct {
	ipv6    bool
	variant string // nft or legacy
}

// tool returns the program of this variant: iptables-legacy-save, or iptables-save where there is only one.
func (p iptablesPorts) tool(suffix string) (string, error) {
	family := state(p.ipv6, "ip6tables", "iptables")
	path, err := exec.LookPath(family + "-" + p.variant + suffix)
	if err != nil {
		path, err = exec.LookPath(family + suffix)
	}
	return path, err
}

// list reads what iptables-save says of table nat: "-A CNI-DN-0123 -p tcp … -j DNAT --to-destination 10.244.1.2:80". Of a
// table in which it cannot read one rule it prints none, and ends well.
func (p iptablesPorts) list(ctx context.Context) (map[netip.Addr][]string, error) {
	path, err := p.tool("-save")
	if err != nil {
		return nil, fmt.Errorf("look for rules of host ports: %w", err)
	}
	out, err := output(ctx, "", path, "-t", "nat")
	if err != nil {
		return nil, err
	}
	header, _, _ := strings.Cut(out, "\n")
	if (p.variant == "nft") != strings.Contains(header, "nf_tables") && strings.Contains(out, "*nat") {
		return nil, fmt.Errorf("look for rules of host ports: %s is no iptables-%s, and there are rules of that: want one in PATH", path, p.variant)
	}
	if p.variant == "nft" && !strings.Contains(out, "\n:"+dnatChain+" ") {
		return nil, fmt.Errorf("look for rules of host ports: %s does not print the chain %s of table nat, which is there: "+
			"look for rules in that table that iptables did not make", path, dnatChain)
	}
	return savedPorts(out), nil
}

// savedPorts reads the output of iptables-save.
func savedPorts(saved string) map[netip.Addr][]string {
	jumps, targets := map[string][]string{}, map[string][]netip.Addr{} // by a pod's chain
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "-A" {
			continue
		}
		to := f[len(f)-1]
		jump, ok := strings.CutPrefix(line, "-A "+dnatChain+" ")
		switch {
		case ok && strings.HasPrefix(to, "CNI-DN-"):
			jumps[to] = append(jumps[to], "-D "+dnatChain+" "+jump)
		case strings.HasPrefix(f[1], "CNI-DN-") && f[len(f)-2] == "--to-destination":
			if a, err := netip.ParseAddrPort(to); err == nil {
				targets[f[1]] = append(targets[f[1]], a.Addr())
			}
		}
	}
	all := map[netip.Addr][]string{}
	for chain, addrs := range targets {
		slices.SortFunc(addrs, netip.Addr.Compare)
		for _, a := range slices.Compact(addrs) {
			all[a] = append(append(all[a], jumps[chain]...), "-F "+chain, "-X "+chain)
		}
	}
	return all
}

func (p iptablesPorts) remove(ctx context.Context, lines []string) error {
	path, err := p.tool("-restore")
	if err == nil {
		_, err = output(ctx, "*nat\n"+strings.Join(lines, "\n")+"\nCOMMIT\n", path, "--noflush", "--wait")
	}
	return err
}

// nftPorts are those of the table of nf_tables, in a family: ip or ip6.
type nftPorts struct{ family string }

// list reads what nft says: "tcp dport 8080 dnat to 10.244.1.2:80 comment … # handle 12", after a line "chain hostports {".
func (p nftPorts) list(ctx context.Context) (map[netip.Addr][]string, error) {
	out, err := output(ctx, "", "nft", "-a", "-n", "list", "table", p.family, portsTable)
	if err != nil {
		return nil, err
	}
	all, chain := map[netip.Addr][]string{}, ""
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == "chain" {
			chain = f[1]
		}
		n := len(f)
		if n < 4 || f[n-2] != "handle" || f[0] == "chain" {
			continue
		}
		if a := nftTarget(f); a.IsValid() {
			all[a] = append(all[a], fmt.Sprintf("delete rule %s %s %s handle %s", p.family, portsTable, chain, f[n-1]))
		}
	}
	return all, nil
}

// nftTarget returns the pod's address in a rule: behind "dnat to", or behind "daddr" where it masquerades.
func nftTarget(words []string) netip.Addr {
	for i, w := range words[:len(words)-1] {
		if w == "to" {
			a, _ := netip.ParseAddrPort(words[i+1])
			return a.Addr()
		}
		if w == "daddr" && slices.Contains(words, "masquerade") {
			a, _ := netip.ParseAddr(words[i+1])
			return a
		}
	}
	return netip.Addr{}
}

func (p nftPorts) remove(ctx context.Context, lines []string) error {
	_, err := output(ctx, strings.Join(lines, "\n")+"\n", "nft", "-f", "-")
	return err
}

// output runs a program and returns what it prints.
func output(ctx context.Context, stdin, path string, args ...string) (string, error) {
	c := exec.Command(path, args...)
	c.Env = append(os.Environ(), "LC_ALL=C")
	c.Stdin = strings.NewReader(stdin)
	stdout, stderr, err := runBounded(ctx, c)
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w: %s", path, strings.Join(args, " "), err, strings.Join(strings.Fields(string(stderr)), " "))
	}
	return string(stdout), nil
}

type nftChain struct {
	family      uint8
	table, name string
}

// nftChains asks the kernel for the chains of all tables of nf_tables, which it may not have.
func nftChains() (map[nftChain]bool, error) {
	const getChain = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN
	req := nl.NewNetlinkRequest(getChain, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	replies, err := dump(func() ([][]byte, error) { return req.Execute(unix.NETLINK_NETFILTER, 0) })
	for _, missing := range []error{unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT} {
		if errors.Is(err, missing) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the chains of nf_tables: %w", err)
	}
	all := map[nftChain]bool{}
	for _, m := range replies {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		table, err := attribute(m[nl.SizeofNfgenmsg:], unix.NFTA_CHAIN_TABLE)
		name, err2 := attribute(m[nl.SizeofNfgenmsg:], unix.NFTA_CHAIN_NAME)
		if err == nil && err2 == nil {
			all[nftChain{m[0], strings.TrimRight(string(table), "\x00"), strings.TrimRight(string(name), "\x00")}] = true
		}
	}
	return all, nil
}
