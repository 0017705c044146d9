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

// rawRule is one rule as the kernel returns it.
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

// socket is the part of netlink.Conn that a reader uses.
type socket interface {
	Execute(m netlink.Message) ([]netlink.Message, error)
	SetDeadline(t time.Time) error
	Close() error
}

// nfnl holds the netlink socket over which nf_tables is read.
type nfnl struct{ conn socket }

func (n *nfnl) close() {
	if n.conn != nil {
		n.conn.Close()
		n.conn = nil
	}
}

// call sends one request and returns its answers. The names are those of a table and perhaps of its chain.
func (n *nfnl) call(
	msg uint16, flags netlink.HeaderFlags, family netstate.Family, names []string,
) ([]netlink.Message, error) {
	if n.conn == nil {
		conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return nil, err
		}
		n.conn = conn
	}
	attrs := netlink.NewAttributeEncoder()
	for i, name := range names {
		t := uint16(unix.NFTA_RULE_TABLE + i) // and NFTA_RULE_CHAIN
		if i > 0 && msg == unix.NFT_MSG_GETCHAIN {
			t = unix.NFTA_CHAIN_NAME
		}
		attrs.String(t, name)
	}
	data, err := attrs.Encode()
	if err != nil {
		return nil, err
	}
	if err := n.conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return nil, err
	}
	return n.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | netlink.HeaderType(msg), Flags: netlink.Request | flags},
		Data:   append([]byte{byte(tableFamily(family)), unix.NFNETLINK_V0, 0, 0}, data...),
	})
}

// reader reads nf_tables. It keeps the first error; whatever it returns after that is meaningless.
//
// google/nftables reads rules too, but drops expressions and attributes that it does not know, so that an altered rule
// could look intact. A reader drops nothing.
type reader struct {
	nf  *nfnl
	err error
}

// call returns the answers to a request about a table, and none if that or its chain does not exist.
func (r *reader) call(
	msg uint16, flags netlink.HeaderFlags, family netstate.Family, names ...string,
) []netlink.Message {
	if r.err != nil {
		return nil
	}
	replies, err := r.nf.call(msg, flags, family, names)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.nf.close() // whatever is still in this socket must not answer the next request
		r.err = fmt.Errorf("read nf_tables %q: %w", names, err)
		return nil
	}
	for _, m := range replies {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			r.err = errMoved
			return nil
		}
	}
	return replies
}

// attributes decodes a list of attributes.
func (r *reader) attributes(b []byte) attrMap {
	m, err := attributes(b)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("decode nf_tables: %w", err)
	}
	return m
}

// generation returns a number that changes with every nf_tables rule, iptables-nft's included.
func (r *reader) generation() (id uint32) {
	ok := false
	for _, m := range r.call(unix.NFT_MSG_GETGEN, 0, netstate.IPv4) {
		id, ok = r.attributes(m.Data[4:]).u32(unix.NFTA_GEN_ID)
	}
	if !ok && r.err == nil {
		r.err = errors.New("read the nf_tables generation: no answer")
	}
	return id
}

// rawTable is a table's header.
type rawTable struct {
	flags uint32
	use   uint32 // how many chains, sets, objects and flowtables it has
}

// dormant reports whether the table is switched off as a whole.
func (t rawTable) dormant() bool { return t.flags&unix.NFT_TABLE_F_DORMANT != 0 }

// tables returns the tables of a family by their names.
func (r *reader) tables(family netstate.Family) map[string]rawTable {
	tables := map[string]rawTable{}
	for _, m := range r.call(unix.NFT_MSG_GETTABLE, netlink.Dump, family) {
		attrs := r.attributes(m.Data[4:])
		var t rawTable
		t.flags, _ = attrs.u32(unix.NFTA_TABLE_FLAGS)
		t.use, _ = attrs.u32(unix.NFTA_TABLE_USE)
		tables[cstring(attrs[unix.NFTA_TABLE_NAME])] = t
	}
	return tables
}

// chain returns a chain's header; nil if there is no such chain.
func (r *reader) chain(family netstate.Family, table, chain string) *rawChain {
	for _, m := range r.call(unix.NFT_MSG_GETCHAIN, 0, family, table, chain) {
		return r.header(r.attributes(m.Data[4:]))
	}
	return nil
}

// header returns the header of a chain with these attributes.
func (r *reader) header(attrs attrMap) *rawChain {
	hook := r.attributes(attrs[unix.NFTA_CHAIN_HOOK])
	c := &rawChain{kind: cstring(attrs[unix.NFTA_CHAIN_TYPE])}
	c.hook, _ = hook.u32(unix.NFTA_HOOK_HOOKNUM)
	c.priority, _ = hook.u32(unix.NFTA_HOOK_PRIORITY)
	c.policy, _ = attrs.u32(unix.NFTA_CHAIN_POLICY)
	_, c.device = hook[unix.NFTA_HOOK_DEV]
	return c
}

// rules returns the rules of one chain, in their order; none if there is no such chain.
func (r *reader) rules(family netstate.Family, table, chain string) []rawRule {
	var rules []rawRule
	for _, m := range r.call(unix.NFT_MSG_GETRULE, netlink.Dump, family, table, chain) {
		rule, err := parseRule(m.Data)
		if err != nil {
			r.err = fmt.Errorf("read a rule of %s %s: %w", table, chain, err)
			return nil
		}
		rules = append(rules, rule)
	}
	return rules
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

// userComment returns the comment in a rule's user data, which is type, length, value triplets (libnftnl's udata.h);
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

// xtComment returns the text of iptables-nft's form of a comment, a match of the xt_comment module.
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

// u32 returns an attribute of four bytes in network order, and whether it is there.
func (m attrMap) u32(t uint16) (uint32, bool) {
	if len(m[t]) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(m[t]), true
}

func cstring(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
