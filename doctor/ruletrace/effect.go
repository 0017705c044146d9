package ruletrace

import (
	"cmp"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/nfnl"
)

// effect is what a rule can do to a packet, beside its verdict.
type effect struct {
	verdict string // what the rule calls it: reject, queue, fwd; empty: as the trace says
	writes  []write
	unseen  string // what it does that the packet's headers do not show: Copied, Retyped
}

// write is what a statement of a rule may alter.
type write struct {
	layer          layer
	offset, length int  // of a payload statement
	named          bool // otherwise fields are named, and none means all but checksums
	fields         []string
}

func (w write) alters(c change) bool {
	switch {
	case w.named:
		return slices.Contains(w.fields, c.field.name) || len(w.fields) == 0 && c.field.name != checksum
	case w.layer != c.layer:
		return false
	}
	return c.field.offset < w.offset+w.length && w.offset < c.field.offset+c.field.length
}

func (e effect) alters(c change) bool {
	return slices.ContainsFunc(e.writes, func(w write) bool { return w.alters(c) })
}

// named returns a write of fields by their names.
func named(fields ...string) []write { return []write{{named: true, fields: fields}} }

// translated are the fields that address translation alters.
var translated = []string{"saddr", "daddr", "sport", "dport"}

// statements are the expressions that do something to a packet. google/nftables leaves out those that it does not know.
var statements = map[string]func(data []byte) effect{
	"reject":   func([]byte) effect { return effect{verdict: "reject"} },
	"fwd":      func([]byte) effect { return effect{verdict: "fwd"} },
	"dup":      func([]byte) effect { return effect{verdict: "dup", unseen: Copied} },
	"notrack":  func([]byte) effect { return effect{verdict: "notrack"} },
	"tproxy":   func([]byte) effect { return effect{verdict: "tproxy"} },
	"synproxy": func([]byte) effect { return effect{verdict: "synproxy"} },
	"nat":      func([]byte) effect { return effect{writes: named(translated...)} },
	"masq":     func([]byte) effect { return effect{writes: named(translated...)} },
	"redir":    func([]byte) effect { return effect{writes: named(translated...)} },
	"payload":  payloadEffect,
	"meta":     metaEffect,
	"target":   func(data []byte) effect { return targetEffect(attributes(data).String(unix.NFTA_TARGET_NAME)) },
}

func effectOf(exprs []nfnl.Expr) effect {
	var all effect
	var loaded []byte // into a register, by the newest expression that did
	for _, x := range exprs {
		if x.Name == "immediate" {
			loaded = nfnl.DataValue(attributes(x.Data)[unix.NFTA_IMMEDIATE_DATA])
		}
		if isRetype(x) && !slices.ContainsFunc(loaded, func(b byte) bool { return b != 0 }) {
			continue // for this host, as packets are that come through
		}
		if f := statements[x.Name]; f != nil {
			e := f(x.Data)
			all.writes = append(all.writes, e.writes...)
			all.unseen = cmp.Or(e.unseen, all.unseen)
			if e.verdict != "" {
				all.verdict = e.verdict
			}
		}
	}
	return all
}

// Attributes that golang.org/x/sys does not have.
const (
	payloadBase, payloadOffset, payloadLength, payloadSource = 2, 3, 4, 5 // NFTA_PAYLOAD_…
)

func payloadEffect(data []byte) effect {
	a := attributes(data)
	if a[payloadSource] == nil {
		return effect{}
	}
	return effect{writes: []write{{layer: layer(number(a[payloadBase])), offset: int(number(a[payloadOffset])),
		length: int(number(a[payloadLength]))}}}
}

func metaEffect(data []byte) effect {
	a := attributes(data)
	if a[unix.NFTA_META_SREG] == nil {
		return effect{}
	}
	switch number(a[unix.NFTA_META_KEY]) {
	case unix.NFT_META_MARK:
		return effect{writes: named("mark")}
	case unix.NFT_META_PKTTYPE:
		return effect{unseen: Retyped}
	}
	return effect{}
}

// isRetype reports whether an expression sets a packet's type.
func isRetype(x nfnl.Expr) bool { return x.Name == "meta" && metaEffect(x.Data).unseen == Retyped }

// targets are what the targets of x_tables may alter. One that is not listed may alter all.
var targets = map[string][]string{
	"TTL": {"ttl"}, "HL": {"hoplimit"}, "MARK": {"mark"}, "CONNMARK": {"mark"}, "mark": {"mark"},
	"DNAT": translated, "SNAT": translated, "MASQUERADE": translated, "REDIRECT": translated, "NETMAP": translated,
	"dnat": {"ether daddr"}, "snat": {"ether saddr"}, "redirect": {"ether daddr"},
	"mangle": {"saddr ip", "daddr ip", "saddr ether", "daddr ether"}, "TCPMSS": {checksum},
	"DSCP": {"tos", "flow"}, "TOS": {"tos", "flow"}, "ECN": {"tos", "flags"},
}

// harmless are the targets that alter nothing.
var harmless = []string{
	"", "ACCEPT", "DROP", "RETURN", "REJECT", "LOG", "NFLOG", "CT", "NOTRACK", "TRACE", "AUDIT", "CONNSECMARK", "SECMARK",
	"CLASSIFY", "SET", "IDLETIMER", "RATEEST", "LED", "NFQUEUE", "QUEUE", "CHECKSUM", "SYNPROXY", "TPROXY",
	"CONTINUE", "log", "nflog", "arpreply",
}

func targetEffect(name string) effect {
	switch {
	case name == "REJECT":
		return effect{verdict: "reject"}
	case name == "TEE":
		return effect{verdict: "dup", unseen: Copied}
	case slices.Contains(harmless, name):
		return effect{}
	}
	return effect{writes: named(targets[name]...)}
}

// attributes returns those of an expression; if they are broken, none.
func attributes(data []byte) nfnl.Attributes {
	attrs, _ := nfnl.ParseAttributes(data)
	return attrs
}

// number returns an attribute of four bytes.
func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
