package ruletrace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// rule is a rule of nf_tables.
type rule struct {
	handle uint64
	effect effect
}

// chain is a chain of nf_tables.
type chain struct {
	hook  string // empty: only rules jump to it
	rules []rule // in their order
}

// ruleset is what nf_tables holds, as far as packets met it.
type ruleset struct {
	chains map[place]*chain
	queues map[uint16]bool // somebody listens to them
}

func (r ruleset) rule(p place, handle uint64) rule {
	if c := r.chains[p]; c != nil {
		for _, x := range c.rules {
			if x.handle == handle {
				return x
			}
		}
	}
	return rule{handle: handle}
}

// readRuleset reads the chains of which events tell, in the calling thread's namespace.
func readRuleset(events []event) (ruleset, error) {
	set := ruleset{map[place]*chain{}, readQueues()}
	nft, err := nftables.New()
	if err != nil {
		return set, fmt.Errorf("open a netfilter socket: %w", err)
	}
	all, err := nft.ListChains()
	if err != nil {
		return set, fmt.Errorf("list the chains of nf_tables: %w", err)
	}
	for _, c := range all {
		p := place{byte(c.Table.Family), c.Table.Name, c.Name}
		set.chains[p] = &chain{}
		if c.Hooknum != nil {
			set.chains[p].hook = hookName(p.family, uint32(*c.Hooknum))
		}
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return set, fmt.Errorf("open a netfilter socket: %w", err)
	}
	defer conn.Close()
	read := map[place]bool{}
	for _, e := range events {
		if c := set.chains[e.place]; c != nil && !read[e.place] && !e.isOurs() {
			read[e.place] = true
			if c.rules, err = readRules(conn, e.place); err != nil {
				return set, err
			}
		}
	}
	return set, nil
}

// readRules returns the rules of a chain.
func readRules(conn *netlink.Conn, p place) ([]rule, error) {
	attrs := netlink.NewAttributeEncoder()
	attrs.ByteOrder = binary.BigEndian
	attrs.String(unix.NFTA_RULE_TABLE, p.table)
	attrs.String(unix.NFTA_RULE_CHAIN, p.chain)
	data, err := attrs.Encode()
	if err != nil {
		return nil, fmt.Errorf("list the rules of %s: %w", p, err)
	}
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: message(unix.NFT_MSG_GETRULE), Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{p.family, unix.NFNETLINK_V0, 0, 0}, data...),
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the rules of %s: %w", p, err)
	}
	var rules []rule
	for _, m := range replies {
		r, err := parseRule(m.Data)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// readQueues returns the numbers of the queues that a program listens to.
func readQueues() map[uint16]bool {
	queues := map[uint16]bool{}
	data, err := os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
	if err != nil {
		return queues
	}
	for line := range strings.Lines(string(data)) {
		var n uint16
		if _, err := fmt.Sscan(line, &n); err == nil {
			queues[n] = true
		}
	}
	return queues
}

// String is the chain as nft names it: inet fw forward.
func (p place) String() string { return familyName(p.family) + " " + p.table + " " + p.chain }

func familyName(family byte) string {
	names := map[byte]string{
		unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_ARP: "arp",
		unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_BRIDGE: "bridge",
	}
	if name, ok := names[family]; ok {
		return name
	}
	return fmt.Sprintf("family %d", family)
}
