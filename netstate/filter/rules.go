package filter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/filter/grammar"
	"github.com/twill-net/twill/netstate/nfnl"
)

// clause is how the clauses of some words are written.
type clause struct {
	words string
	// encode returns the expressions that nft would write, or nil if that is no argument of the clause.
	encode func(family netstate.Family, arg string) []expr.Any
}

// stateClauses say what conntrack knows of a packet, and where it comes in and goes out.
var stateClauses = []clause{
	{words: "new", encode: func(netstate.Family, string) []expr.Any { return ctState(expr.CtStateBitNEW) }},
	{words: "ct reply established", encode: func(netstate.Family, string) []expr.Any {
		reply := []expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, nfnl.Compare(expr.CmpOpEq, []byte{1})}
		return append(reply, ctState(expr.CtStateBitESTABLISHED)...)
	}},
	{words: "ct related", encode: func(netstate.Family, string) []expr.Any { return ctState(expr.CtStateBitRELATED) }},
	{words: "iifname", encode: device(expr.MetaKeyIIFNAME)},
	{words: "oifname", encode: device(expr.MetaKeyOIFNAME)},
	{words: "tcp without syn", encode: func(netstate.Family, string) []expr.Any {
		flags := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1}
		return append(isProtocol(unix.IPPROTO_TCP), flags, nfnl.Mask([]byte{tcpSYN}), nfnl.Compare(expr.CmpOpEq, []byte{0}))
	}},
	{words: "icmpv6", encode: func(_ netstate.Family, arg string) []expr.Any {
		least, most, ok := numbers(arg, 8)
		if !ok {
			return nil
		}
		kind := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 1}
		return append(isProtocol(unix.IPPROTO_ICMPV6), between(kind, []byte{byte(least)}, []byte{byte(most)})...)
	}},
}

var reset = clause{words: "reset", encode: func(netstate.Family, string) []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
}}

// tcpSYN is the flag SYN in TCP's header.
const tcpSYN = 2

// ends are what rules of all families end with, and what may come before it.
var ends = []clause{
	{words: "mark without", encode: withBits(func(bits uint32) []expr.Any {
		return []expr.Any{nfnl.Mask(binaryutil.NativeEndian.PutUint32(bits)), nfnl.Compare(expr.CmpOpEq, make([]byte, 4))}
	})},
	{words: "mark set", encode: withBits(func(bits uint32) []expr.Any { return markWith(bits, bits) })},
	{words: "mark clear", encode: withBits(func(bits uint32) []expr.Any { return markWith(bits, 0) })},
	{words: "counter", encode: func(netstate.Family, string) []expr.Any { return []expr.Any{&expr.Counter{}} }},
	{words: "log", encode: logAs},
	{words: "accept", encode: verdict(expr.VerdictAccept)},
	{words: "drop", encode: verdict(expr.VerdictDrop)},
	{words: "return", encode: verdict(expr.VerdictReturn)},
	{words: "jump", encode: verdict(expr.VerdictJump)},
	{words: "goto", encode: verdict(expr.VerdictGoto)},
}

// withBits is about the packet's mark, and bits of it.
func withBits(then func(bits uint32) []expr.Any) func(netstate.Family, string) []expr.Any {
	return func(_ netstate.Family, arg string) []expr.Any {
		bits, err := strconv.ParseUint(arg, 0, 32)
		if err != nil || bits == 0 {
			return nil
		}
		return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}}, then(uint32(bits))...)
	}
}

// markWith gives the packet the loaded mark with other values of some bits.
func markWith(bits, values uint32) []expr.Any {
	change := nfnl.Mask(binaryutil.NativeEndian.PutUint32(^bits))
	change.Xor = binaryutil.NativeEndian.PutUint32(values)
	return []expr.Any{change, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1}}
}

// clauses are what rules of each family consist of, by the word for their view.
var clauses = map[netstate.Family]map[string][]clause{
	netstate.IPv4:     packetGrammar(),
	netstate.IPv6:     packetGrammar(),
	netstate.Ethernet: {"": slices.Concat(frameClauses, ends)},
}

// packetGrammar is that of packets, by the word for their view.
func packetGrammar() map[string][]clause {
	all := map[string][]clause{}
	for word, v := range views {
		all[word] = append(slices.Concat(stateClauses, v.clauses(), v.senderClauses(), ends, v.mapEnds()), reset)
	}
	return all
}

// encode returns a rule as expressions.
func encode(family netstate.Family, rule string) ([]expr.Any, error) {
	var exprs []expr.Any
	words, ended := strings.Fields(rule), false
	known := clauses[family][""]
	if len(words) > 0 && clauses[family][words[0]] != nil {
		known, words = clauses[family][words[0]], words[1:]
	}
	for len(words) > 0 {
		if ended {
			return nil, fmt.Errorf("rule %q: it goes on with %q after its end", rule, words[0])
		}
		c, rest := grammar.Next(words)
		var e []expr.Any
		if i := slices.IndexFunc(known, func(k clause) bool { return k.words == c.Words }); i >= 0 {
			e = known[i].encode(family, c.Arg)
		}
		if e == nil {
			return nil, fmt.Errorf("rule %q: no clause begins with %q", rule, strings.Join(words, " "))
		}
		exprs, words, ended = append(exprs, e...), rest, c.End
	}
	if !ended {
		return nil, fmt.Errorf("rule %q: want an end such as accept, drop or return", rule)
	}
	return exprs, nil
}

// register returns the register that begins size bytes after the first one's begin. The first of each four 32-bit
// registers goes by the number of the 128-bit one, which the kernel reports, too.
func register(size int) uint32 {
	if size%16 == 0 {
		return uint32(unix.NFT_REG_1 + size/16)
	}
	return uint32(unix.NFT_REG32_00 + size/4)
}

func ctState(bits uint32) []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, nfnl.Mask(binaryutil.NativeEndian.PutUint32(bits)),
		nfnl.Compare(expr.CmpOpNeq, make([]byte, 4))}
}

func device(key expr.MetaKey) func(netstate.Family, string) []expr.Any {
	return func(_ netstate.Family, name string) []expr.Any {
		if len(name) >= unix.IFNAMSIZ {
			return nil
		}
		return []expr.Any{&expr.Meta{Key: key, Register: 1},
			nfnl.Compare(expr.CmpOpEq, nfnl.Pad([]byte(name), unix.IFNAMSIZ))}
	}
}

// lookup looks for what was loaded in the set of a name, "@NAME".
func lookup(arg string, loads ...expr.Any) []expr.Any {
	name, ok := strings.CutPrefix(arg, "@")
	if !ok || name == "" {
		return nil
	}
	return append(loads, &expr.Lookup{SourceRegister: 1, SetName: name})
}

// numbers reads "N" or "N-M".
func numbers(text string, bits int) (least, most uint64, ok bool) {
	first, last, two := strings.Cut(text, "-")
	if !two {
		last = first
	}
	least, err := strconv.ParseUint(first, 10, bits)
	most, lastErr := strconv.ParseUint(last, 10, bits)
	return least, most, err == nil && lastErr == nil && least <= most
}

// between compares what is loaded with two bounds that belong to the range, or with one number.
func between(load expr.Any, least, most []byte) []expr.Any {
	if string(least) == string(most) {
		return []expr.Any{load, nfnl.Compare(expr.CmpOpEq, least)}
	}
	return []expr.Any{load, nfnl.Compare(expr.CmpOpGte, least), nfnl.Compare(expr.CmpOpLte, most)}
}

// logAs logs packets with a name before them, as far as the limit lets it.
func logAs(_ netstate.Family, name string) []expr.Any {
	if len(name) >= logPrefix || strings.ContainsRune(name, 0) {
		return nil
	}
	return []expr.Any{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: netstate.LogRate, Unit: expr.LimitTimeSecond, Burst: netstate.LogBurst},
		&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX, Group: netstate.LogGroup, Data: []byte(name)},
	}
}

// logPrefix is NF_LOG_PREFIXLEN of linux/netfilter/nf_log.h, with the NUL at its end.
const logPrefix = 128

func verdict(kind expr.VerdictKind) func(netstate.Family, string) []expr.Any {
	return func(_ netstate.Family, chain string) []expr.Any {
		return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
	}
}

// linesOf returns the rules of a text.
func linesOf(rules string) []string {
	if rules == "" {
		return nil
	}
	return strings.Split(rules, "\n")
}
