package fastpath

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/nfnl"
	"github.com/twill-net/twill/netstate/rtnl"
)

// chain is a base chain of nf_tables that belongs to devices.
type chain struct {
	devs   []string // names; those that end with an asterisk are the beginnings of names
	egress bool
	text   string
}

// at reports whether a device's packets pass the chain.
func (c chain) at(dev string) bool {
	return slices.ContainsFunc(c.devs, func(name string) bool {
		prefix, isPrefix := strings.CutSuffix(name, "*")
		return name == dev || isPrefix && strings.HasPrefix(dev, prefix)
	})
}

// Attributes and hooks of linux/netfilter/nf_tables.h and linux/netfilter.h. Not every kernel has prefixes.
const (
	hookDevices   = 4 // NFTA_HOOK_DEVS
	devicePrefix  = 2 // NFTA_DEVICE_PREFIX
	inetIngress   = 5 // NF_INET_INGRESS
	netdevIngress = 0 // NF_NETDEV_INGRESS
	netdevEgress  = 1 // NF_NETDEV_EGRESS
)

// traceTable begins the names of the doctor's tables, which are there while it follows packets and drop none.
const traceTable = "twill-trace-"

// chains returns those of all devices.
func (s sockets) chains() (all []chain, err error) {
	for family, name := range map[byte]string{unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_INET: "inet"} {
		messages, err := rtnl.Retry("chains of devices", func() ([][]byte, error) {
			const get, answer = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN, unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWCHAIN
			r := nl.NewNetlinkRequest(get, unix.NLM_F_DUMP)
			r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: s.nft}
			r.AddRawData([]byte{family, unix.NFNETLINK_V0, 0, 0})
			return r.Execute(unix.NETLINK_NETFILTER, answer)
		})
		if nfnl.Unsupported(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the chains of devices: %w", err)
		}
		for _, m := range messages {
			c, ok, err := parseChain(name, m)
			if err != nil {
				return nil, fmt.Errorf("list the chains of devices: %w", err)
			}
			if ok {
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(a, b chain) int { return strings.Compare(a.text, b.text) })
	return all, nil
}

// parseChain returns a chain, and whether it is one that belongs to devices.
func parseChain(family string, m []byte) (c chain, ok bool, err error) {
	const header = 4
	if len(m) < header {
		return c, false, fmt.Errorf("a chain of %d bytes: want at least %d", len(m), header)
	}
	attrs, err := nfnl.ParseAttributes(m[header:])
	if err != nil || attrs[unix.NFTA_CHAIN_HOOK] == nil {
		return c, false, err
	}
	if strings.HasPrefix(attrs.String(unix.NFTA_CHAIN_TABLE), traceTable) {
		return c, false, nil
	}
	hook, err := nfnl.ParseAttributes(attrs[unix.NFTA_CHAIN_HOOK])
	if err != nil {
		return c, false, err
	}
	number, _ := hook.Uint32(unix.NFTA_HOOK_HOOKNUM)
	side := "ingress"
	switch {
	case family == "netdev" && number == netdevEgress:
		c.egress, side = true, "egress"
	case family == "netdev" && number != netdevIngress, family == "inet" && number != inetIngress:
		return c, false, nil
	}
	if dev := hook.String(unix.NFTA_HOOK_DEV); dev != "" {
		c.devs = append(c.devs, dev)
	}
	for kind, name := range nfnl.Walk(hook[hookDevices]) {
		dev := nfnl.CString(name)
		if kind == devicePrefix {
			dev += "*"
		}
		c.devs = append(c.devs, dev)
	}
	c.text = fmt.Sprintf("%s chain %s %s %s", side, family, attrs.String(unix.NFTA_CHAIN_TABLE), attrs.String(unix.NFTA_CHAIN_NAME))
	return c, true, nil
}

// Beside returns what somebody else has where packets leave through these devices, by their names: what is handed straight
// into pods passes by it. Where packets come in from a pod, they meet all that is there before they come to the bridge.
func (p *Provider) Beside(devs []string) (map[string]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	qdiscs, err := p.qdiscs()
	if err != nil {
		return nil, err
	}
	chains, err := p.chains()
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, dev := range devs {
		index, err := p.names.index(dev)
		if err != nil {
			continue // it has gone
		}
		var a attached
		if qdiscs[index] == "clsact" {
			a.filters, err = p.filters(index, netlink.HANDLE_MIN_EGRESS)
		}
		if err == nil && p.tcx {
			err = p.addHooks(&a, index, ebpf.AttachTCXEgress, nil)
		}
		for _, c := range chains {
			if c.egress && c.at(dev) {
				a.other = append(a.other, c.text)
			}
		}
		if _, there := p.names.name(index); err != nil && there {
			return nil, fmt.Errorf("device %s: %w", dev, err)
		}
		if len(a.other) > 0 {
			all[dev] = strings.Join(a.other, ", ")
		}
	}
	return all, nil
}
