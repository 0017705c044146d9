package delegate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/savedrule"
	"github.com/twill-net/twill/netstate/rtnl"
)

// HostPorts removes rules that lead ports of the node to addresses of pods that are gone. portmap's rules can
// be in three places, and its DEL looks into one: in legacy iptables, in iptables over nf_tables, and in a
// table of nf_tables that newer portmaps can use. Which one it was depends on the iptables of whoever ran
// ADD: the node's, while an agent in a container has its own. So before an address is free for another pod
// all three are searched for what leads to it.
//
// The rules are listed once, so a HostPorts is made for one round over the allocations.
type HostPorts struct{ left rules }

// Remove removes the rules that lead to addresses of the pod, in its turn, and returns an error if any stay.
func (h *HostPorts) Remove(ctx context.Context, p Pod, addrs []netip.Addr) error {
	if h.left == nil {
		h.left = rules{}
		if err := eachPlace(ctx, func(_ place, r rules) error { maps.Copy(h.left, r); return nil }); err != nil {
			h.left = nil
			return err
		}
	}
	if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return len(h.left[a]) > 0 }) {
		return nil
	}
	turn, err := p.takeTurn(ctx)
	if err != nil {
		return err
	}
	defer turn.Close()
	return eachPlace(ctx, func(p place, r rules) error { return remove(ctx, p, r, addrs) })
}

func remove(ctx context.Context, p place, r rules, addrs []netip.Addr) error {
	var lines []string
	for _, a := range addrs {
		lines = append(lines, r[a]...)
	}
	if len(lines) == 0 {
		return nil
	}
	if err := p.remove(ctx, strings.Join(lines, "\n")+"\n"); err != nil {
		return err
	}
	left, err := p.list(ctx)
	for _, a := range addrs {
		if len(left[a]) > 0 {
			err = errors.Join(err, fmt.Errorf("rules still lead host ports to %s", a))
		}
	}
	return err
}

// rules are the lines that remove what leads to an address.
type rules map[netip.Addr][]string

// place is where rules of portmap can be, for one address family.
type place interface {
	list(ctx context.Context) (rules, error)
	remove(ctx context.Context, lines string) error
}

const (
	dnatChain  = "CNI-HOSTPORT-DNAT" // of table nat; it leads to a chain for each pod
	podChain   = "CNI-DN-"           // how the names of those begin
	portsTable = "cni_hostport"      // of nf_tables
)

// portPlaces returns the places that there are on this machine. Asking creates nothing.
func portPlaces() ([]place, error) {
	var all []place
	chains, err := nftChains()
	for _, f := range []struct {
		nft                    uint8
		nftName, program, proc string
	}{{unix.AF_INET, "ip", "iptables", "ip_tables_names"}, {unix.AF_INET6, "ip6", "ip6tables", "ip6_tables_names"}} {
		if chains[nftChain{f.nft, "nat", dnatChain}] {
			all = append(all, iptablesPorts{f.program, "nft"})
		}
		tables, err := os.ReadFile("/proc/thread-self/net/" + f.proc)
		if err == nil && slices.Contains(strings.Fields(string(tables)), "nat") {
			all = append(all, iptablesPorts{f.program, "legacy"})
		}
		if chains[nftChain{f.nft, portsTable, "hostports"}] {
			all = append(all, nftPorts{f.nftName})
		}
	}
	return all, err
}

// eachPlace calls f with every place and its rules, until there is an error.
func eachPlace(ctx context.Context, f func(place, rules) error) error {
	places, err := portPlaces()
	for _, p := range places {
		var r rules
		if err == nil {
			r, err = p.list(ctx)
		}
		if err == nil {
			err = f(p, r)
		}
	}
	return err
}

// iptablesPorts are those of one iptables.
type iptablesPorts struct{ program, variant string } // iptables or ip6tables; nft or legacy

// tool returns the program of this variant: iptables-legacy-save, or iptables-save where there is only one.
func (p iptablesPorts) tool(suffix string) (string, error) {
	path, err := exec.LookPath(p.program + "-" + p.variant + suffix)
	if err != nil {
		path, err = exec.LookPath(p.program + suffix)
	}
	return path, err
}

// list reads what iptables-save says of table nat. Of a table in which it cannot read one rule it prints
// none, and exits with 0.
func (p iptablesPorts) list(ctx context.Context) (rules, error) {
	const doing = "look for rules of host ports"
	path, err := p.tool("-save")
	if err != nil {
		return nil, fmt.Errorf(doing+": %w", err)
	}
	out, err := output(ctx, "", path, "-t", "nat")
	if err != nil {
		return nil, err
	}
	header, _, _ := strings.Cut(out, "\n")
	if (p.variant == "nft") != strings.Contains(header, "nf_tables") && strings.Contains(out, "*nat") {
		return nil, fmt.Errorf(doing+": %s is no iptables-%s, and there are rules of that: want one in PATH", path, p.variant)
	}
	if p.variant == "nft" && !strings.Contains(out, "\n:"+dnatChain+" ") {
		return nil, fmt.Errorf(doing+": %s does not print the chain %s of table nat, which is there: "+
			"look for rules in that table that iptables did not make", path, dnatChain)
	}
	return savedPorts(out), nil
}

// savedPorts reads the output of iptables-save: "-A CNI-DN-0123 -p tcp … -j DNAT --to-destination
// 10.244.1.2:80".
func savedPorts(saved string) rules {
	jumps, targets := map[string][]string{}, map[string][]netip.Addr{} // by a pod's chain
	for _, c := range savedrule.Parse(saved) {
		for _, r := range c.Rules {
			to, option := r.Words[len(r.Words)-1], r.Words[len(r.Words)-2]
			switch {
			case c.Name == dnatChain && strings.HasPrefix(to, podChain):
				jumps[to] = append(jumps[to], "-D"+strings.TrimPrefix(r.Text, "-A"))
			case strings.HasPrefix(c.Name, podChain) && option == "--to-destination":
				if a, err := netip.ParseAddrPort(to); err == nil {
					targets[c.Name] = append(targets[c.Name], a.Addr())
				}
			}
		}
	}
	all := rules{}
	for chain, addrs := range targets {
		slices.SortFunc(addrs, netip.Addr.Compare)
		for _, a := range slices.Compact(addrs) {
			all[a] = append(append(all[a], jumps[chain]...), "-F "+chain, "-X "+chain)
		}
	}
	return all
}

func (p iptablesPorts) remove(ctx context.Context, lines string) error {
	path, err := p.tool("-restore")
	if err == nil {
		_, err = output(ctx, "*nat\n"+lines+"COMMIT\n", path, "--noflush", "--wait")
	}
	return err
}

// nftPorts are those of the table of nf_tables, in a family: ip or ip6.
type nftPorts struct{ family string }

// list reads what nft says: "tcp dport 8080 dnat to 10.244.1.2:80 comment … # handle 12", after a line "chain
// x {".
func (p nftPorts) list(ctx context.Context) (rules, error) {
	out, err := output(ctx, "", "nft", "-a", "-n", "list", "table", p.family, portsTable)
	if err != nil {
		return nil, err
	}
	all, chain := rules{}, ""
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		n := len(f)
		if n > 1 && f[0] == "chain" {
			chain = f[1]
		} else if n >= 4 && f[n-2] == "handle" {
			if a := nftTarget(f); a.IsValid() {
				all[a] = append(all[a], fmt.Sprintf("delete rule %s %s %s handle %s", p.family, portsTable, chain, f[n-1]))
			}
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

func (p nftPorts) remove(ctx context.Context, lines string) error {
	_, err := output(ctx, lines, "nft", "-f", "-")
	return err
}

// output runs a program and returns what it prints.
func output(ctx context.Context, stdin, path string, args ...string) (string, error) {
	c := exec.Command(path, args...)
	c.Env = append(os.Environ(), "LC_ALL=C")
	c.Stdin = strings.NewReader(stdin)
	stdout, stderr, err := runBounded(ctx, c)
	if err != nil {
		complaint := strings.Join(strings.Fields(string(stderr)), " ")
		return "", fmt.Errorf("run %s: %w: %s", strings.Join(c.Args, " "), err, complaint)
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
	replies, err := rtnl.Retry("chains of nf_tables",
		func() ([][]byte, error) { return req.Execute(unix.NETLINK_NETFILTER, 0) })
	for _, missing := range []error{unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT} {
		if errors.Is(err, missing) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	all := map[nftChain]bool{}
	for _, m := range replies {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		c := nftChain{family: m[0]}
		attrs, _ := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		for _, a := range attrs {
			switch a.Attr.Type {
			case unix.NFTA_CHAIN_TABLE:
				c.table = unix.ByteSliceToString(a.Value)
			case unix.NFTA_CHAIN_NAME:
				c.name = unix.ByteSliceToString(a.Value)
			}
		}
		all[c] = true
	}
	return all, nil
}
