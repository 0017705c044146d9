package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// nfnl reads nf_tables over netlink. The rules that github.com/google/nftables reads back lack every expression
// and attribute that it does not know, so that an altered rule could look intact; here nothing is left out.
type nfnl struct{ conn *netlink.Conn }

// rawRule is one rule as the kernel tells it.
type rawRule struct {
	handle  uint64
	exprs   []rawExpr
	comment string // from the user data, or from an xt comment match
}

// rawExpr is one expression of a rule.
type rawExpr struct {
	name string
	data []byte // nested attributes
}

// rawChain is a chain's header.
type rawChain struct {
	kind           string // "nat", "filter"; empty: not a base chain
	hook, priority uint32
	policy         uint32
	device         bool
}

// callTimeout bounds one request: an answer that got lost must not stop the agent for ever.
const callTimeout = 10 * time.Second

// call sends one request and gives its answers; a missing table or chain is fs.ErrNotExist.
func (n *nfnl) call(msg uint16, flags netlink.HeaderFlags, family netstate.Family, attrs ...netlink.Attribute) ([]netlink.Message, error) {
	if n.conn == nil {
		conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return nil, fmt.Errorf("open nf_tables netlink: %w", err)
		}
		n.conn = conn
	}
	data, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return nil, err
	}
	if err := n.conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return nil, fmt.Errorf("bound an nf_tables request: %w", err)
	}
	replies, err := n.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | msg), Flags: netlink.Request | flags},
		Data:   append([]byte{byte(tableFamily(family)), unix.NFNETLINK_V0, 0, 0}, data...),
	})
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			n.close() // whatever is still in this socket must not answer the next request
		}
		return nil, err
	}
	return replies, nil
}

func (n *nfnl) close() {
	if n.conn != nil {
		n.conn.Close()
		n.conn = nil
	}
}

// generation is a number that moves with every change of any nf_tables rule, iptables-nft's included.
func (n *nfnl) generation() (uint32, error) {
	replies, err := n.call(unix.NFT_MSG_GETGEN, 0, netstate.IPv4)
	if err != nil {
		return 0, fmt.Errorf("read the nf_tables generation: %w", err)
	}
	for _, m := range replies {
		attrs, err := attributes(m.Data[4:])
		if err != nil {
			return 0, err
		}
		if id, ok := attrs.u32(unix.NFTA_GEN_ID); ok {
			return id, nil
		}
	}
	return 0, errors.New("read the nf_tables generation: no answer")
}

// dormant says whether a table is switched off as a whole.
func (n *nfnl) dormant(family netstate.Family, table string) (bool, error) {
	replies, err := n.call(unix.NFT_MSG_GETTABLE, 0, family, text(unix.NFTA_TABLE_NAME, table))
	if err != nil || len(replies) == 0 {
		return false, err
	}
	attrs, err := attributes(replies[0].Data[4:])
	flags, _ := attrs.u32(unix.NFTA_TABLE_FLAGS)
	return flags&unix.NFT_TABLE_F_DORMANT != 0, err
}

// chain is a chain's header; nil if there is no such chain.
func (n *nfnl) chain(family netstate.Family, table, chain string) (*rawChain, error) {
	replies, err := n.call(unix.NFT_MSG_GETCHAIN, 0, family,
		text(unix.NFTA_CHAIN_TABLE, table), text(unix.NFTA_CHAIN_NAME, chain))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil || len(replies) == 0 {
		return nil, fmt.Errorf("read chain %s %s: %w", table, chain, err)
	}
	attrs, err := attributes(replies[0].Data[4:])
	if err != nil {
		return nil, err
	}
	hook, err := attributes(attrs[unix.NFTA_CHAIN_HOOK])
	if err != nil {
		return nil, err
	}
	c := &rawChain{kind: cstring(attrs[unix.NFTA_CHAIN_TYPE])}
	c.hook, _ = hook.u32(unix.NFTA_HOOK_HOOKNUM)
	c.priority, _ = hook.u32(unix.NFTA_HOOK_PRIORITY)
	c.policy, _ = attrs.u32(unix.NFTA_CHAIN_POLICY)
	_, c.device = hook[unix.NFTA_HOOK_DEV]
	return c, nil
}

// rules are the rules of one chain, in their order; none if there is no such chain.
func (n *nfnl) rules(family netstate.Family, table, chain string) ([]rawRule, error) {
	replies, err := n.call(unix.NFT_MSG_GETRULE, netlink.Dump, family,
		text(unix.NFTA_RULE_TABLE, table), text(unix.NFTA_RULE_CHAIN, chain))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list rules of %s %s: %w", table, chain, err)
	}
	var rules []rawRule
	for _, m := range replies {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return nil, errMoved
		}
		r, err := parseRule(m.Data)
		if err != nil {
			return nil, fmt.Errorf("decode a rule of %s %s: %w", table, chain, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// parseRule reads the payload of an NFT_MSG_NEWRULE: nfgenmsg, then NFTA_RULE_ attributes.
func parseRule(data []byte) (rawRule, error) {
	if len(data) < 4 {
		return rawRule{}, fmt.Errorf("message of %d bytes: want at least 4", len(data))
	}
	attrs, err := attributes(data[4:])
	if err != nil {
		return rawRule{}, err
	}
	r := rawRule{comment: userComment(attrs[unix.NFTA_RULE_USERDATA])}
	if h := attrs[unix.NFTA_RULE_HANDLE]; len(h) == 8 {
		r.handle = binary.BigEndian.Uint64(h)
	}
	list, err := netlink.UnmarshalAttributes(attrs[unix.NFTA_RULE_EXPRESSIONS])
	if err != nil {
		return rawRule{}, err
	}
	for _, a := range list {
		e, err := parseExpr(a.Data)
		if err != nil {
			return rawRule{}, err
		}
		if c, ok := e.xtComment(); ok {
			r.comment = c
		}
		r.exprs = append(r.exprs, e)
	}
	return r, nil
}

func parseExpr(data []byte) (rawExpr, error) {
	e, err := attributes(data)
	return rawExpr{cstring(e[unix.NFTA_EXPR_NAME]), e[unix.NFTA_EXPR_DATA]}, err
}

// userComment is the comment in a rule's user data, which is type, length, value triplets (libnftnl's udata.h);
// a comment has type 0 and ends with a NUL.
func userComment(b []byte) string {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		if b[0] == 0 {
			return cstring(b[2 : 2+int(b[1])])
		}
		b = b[2+int(b[1]):]
	}
	return ""
}

// xtComment is the text of iptables-nft's form of a comment, a match of the xt_comment module.
func (e rawExpr) xtComment() (string, bool) {
	if e.name != "match" {
		return "", false
	}
	attrs, err := attributes(e.data)
	if err != nil || cstring(attrs[unix.NFTA_MATCH_NAME]) != "comment" {
		return "", false
	}
	return cstring(attrs[unix.NFTA_MATCH_INFO]), true
}

// attrFlags are no part of an attribute's type.
const attrFlags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER

// attrMap is a list of netlink attributes by type.
type attrMap map[uint16][]byte

func attributes(b []byte) (attrMap, error) {
	list, err := netlink.UnmarshalAttributes(b)
	if err != nil {
		return nil, err
	}
	m := make(attrMap, len(list))
	for _, a := range list {
		m[a.Type&^attrFlags] = a.Data
	}
	return m, nil
}

// u32 is an attribute of four bytes in network order, and whether it is there.
func (m attrMap) u32(t uint16) (uint32, bool) {
	if len(m[t]) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(m[t]), true
}

func text(t uint16, s string) netlink.Attribute {
	return netlink.Attribute{Type: t, Data: append([]byte(s), 0)}
}

func cstring(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
