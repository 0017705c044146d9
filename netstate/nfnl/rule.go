package nfnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Rule is one rule as the kernel returns it.
type Rule struct {
	Chain   string
	Handle  uint64
	Exprs   []Expr
	Comment string // from the user data, or from an xt comment match
}

// Expr is one expression of a rule.
type Expr struct {
	Name string
	Data []byte // nested attributes
}

// ParseRule reads the payload of an NFT_MSG_NEWRULE: nfgenmsg, then NFTA_RULE_ attributes.
func ParseRule(data []byte) (Rule, error) {
	if len(data) < 4 {
		return Rule{}, fmt.Errorf("message of %d bytes: want at least 4", len(data))
	}
	var r Rule
	var exprs []byte
	for t, d := range Walk(data[4:]) {
		switch t {
		case unix.NFTA_RULE_CHAIN:
			r.Chain = CString(d)
		case unix.NFTA_RULE_USERDATA:
			r.Comment = userComment(d)
		case unix.NFTA_RULE_HANDLE:
			if len(d) == 8 {
				r.Handle = binary.BigEndian.Uint64(d)
			}
		case unix.NFTA_RULE_EXPRESSIONS:
			exprs = d
		}
	}
	if err := errors.Join(check(data[4:]), check(exprs)); err != nil {
		return Rule{}, err
	}
	for _, d := range Walk(exprs) {
		e, err := parseExpr(d)
		if err != nil {
			return Rule{}, err
		}
		if c, ok := e.XTComment(); ok {
			r.Comment = c
		}
		r.Exprs = append(r.Exprs, e)
	}
	return r, nil
}

func parseExpr(data []byte) (e Expr, err error) {
	for t, d := range Walk(data) {
		switch t {
		case unix.NFTA_EXPR_NAME:
			e.Name = CString(d)
		case unix.NFTA_EXPR_DATA:
			e.Data = d
		}
	}
	return e, check(data)
}

// userComment returns the comment in a rule's user data, which is type, length, value triplets (libnftnl's udata.h);
// a comment has type 0 and ends with a NUL.
func userComment(b []byte) string {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		if b[0] == 0 {
			return CString(b[2 : 2+int(b[1])])
		}
		b = b[2+int(b[1]):]
	}
	return ""
}

// XTComment returns the text of iptables-nft's form of a comment, a match of the xt_comment module.
func (e Expr) XTComment() (string, bool) {
	if e.Name != "match" {
		return "", false
	}
	attrs, err := ParseAttributes(e.Data)
	if err != nil || attrs.String(unix.NFTA_MATCH_NAME) != "comment" {
		return "", false
	}
	return attrs.String(unix.NFTA_MATCH_INFO), true
}

// Verdict returns the attributes of the verdict of an immediate expression.
func (e Expr) Verdict() Attributes {
	if e.Name != "immediate" {
		return nil
	}
	attrs, _ := ParseAttributes(e.Data)
	data, _ := ParseAttributes(attrs[unix.NFTA_IMMEDIATE_DATA])
	v, _ := ParseAttributes(data[unix.NFTA_DATA_VERDICT])
	return v
}

// IsPrefix returns the length of want if exprs begin so, otherwise 0. Counters are equal whatever they have counted.
func IsPrefix(want []expr.Any, exprs []Expr) int {
	if len(want) > len(exprs) {
		return 0
	}
	for i, e := range want {
		w, err := encodeExpr(e)
		if err != nil || !exprs[i].equal(w) {
			return 0
		}
	}
	return len(want)
}

// encodeExpr returns e as the kernel would, but for flags and the order of attributes.
func encodeExpr(e expr.Any) (Expr, error) {
	switch e := e.(type) {
	case *expr.Lookup: // only the transaction that makes the set knows its number
		return encodeWithout("lookup", e, unix.NFTA_LOOKUP_SET_ID)
	case *expr.Ct:
		data, err := expr.MarshalExprData(unix.NFPROTO_IPV4, e)
		correctCt(data)
		return Expr{"ct", data}, err
	case *expr.Reject:
		if e.Type == unix.NFT_REJECT_TCP_RST { // which has no code
			return encodeWithout("reject", e, unix.NFTA_REJECT_ICMP_CODE)
		}
	}
	data, err := expr.Marshal(unix.NFPROTO_IPV4, e)
	if err != nil {
		return Expr{}, err
	}
	return parseExpr(data)
}

// CorrectRule corrects what google/nftables writes in a message that makes a rule.
func CorrectRule(m netlink.Message) {
	if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE || len(m.Data) < 4 {
		return
	}
	for t, exprs := range Walk(m.Data[4:]) {
		if t != unix.NFTA_RULE_EXPRESSIONS {
			continue
		}
		for _, data := range Walk(exprs) {
			if e, err := parseExpr(data); err == nil && e.Name == "ct" {
				correctCt(e.Data)
			}
		}
	}
}

// correctCt corrects a ct expression with a direction. That is one byte; google/nftables makes it a number of four in network
// order, of which the kernel would read the first one, which is always 0. And it knows none of the keys that have a direction and
// a family (Linux 4.17), without which nft cannot list sets of more than an address: the direction has them in its second byte.
func correctCt(data []byte) {
	var key []byte
	for t, d := range Walk(data) {
		if t == unix.NFTA_CT_KEY {
			key = d
		}
	}
	const size = unix.NLA_HDRLEN + 4
	for b := data; len(b) >= size; {
		n, ok := first(b)
		if !ok {
			return
		}
		if d := b[unix.NLA_HDRLEN:size]; binary.NativeEndian.Uint16(b[2:]) == unix.NFTA_CT_DIRECTION && n == size {
			if d[2] != 0 && len(key) == 4 {
				key[3] = d[2]
			}
			copy(d, []byte{d[3], 0, 0, 0}) // padding is behind it
			binary.NativeEndian.PutUint16(b, unix.NLA_HDRLEN+1)
		}
		b = b[min(len(b), align(n)):]
	}
}

// encodeWithout leaves out an attribute.
func encodeWithout(name string, e expr.Any, attribute uint16) (Expr, error) {
	data, err := expr.MarshalExprData(unix.NFPROTO_IPV4, e)
	if err != nil {
		return Expr{}, err
	}
	list, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return Expr{}, err
	}
	isIt := func(a netlink.Attribute) bool { return a.Type == attribute }
	data, err = netlink.MarshalAttributes(slices.DeleteFunc(list, isIt))
	return Expr{name, data}, err
}

func (e Expr) equal(want Expr) bool {
	return e.Name == want.Name && (e.Name == "counter" || equalAttributes(e.Data, want.Data))
}
