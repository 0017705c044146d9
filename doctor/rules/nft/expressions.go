package nft

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate/nfnl"
)

// decoder reads the expressions of one rule. Some load a part of the packet into a register, and others compare that.
type decoder struct {
	*reader
	rules.Rule

	table  nfnl.Place
	loaded map[uint32]operand // by register; those that are missing are not understood
}

// operand is a part of the packet, or something that is known of it.
type operand struct {
	// add adds a condition to the rule, and reports whether it understands it. nil: it understands none.
	add  func(*decoder, comparison) bool
	size int    // in bytes
	mask []byte // of the bits that are compared; nil: all
}

// comparison is what an operand is compared with: it is in one of some spans, or in none.
type comparison struct {
	operand

	spans []span
	not   bool
}

// rule decodes a rule. What it does not understand becomes a condition that never holds.
func (r *reader) rule(table nfnl.Place, exprs []nfnl.Expr) rules.Rule {
	d := decoder{reader: r, table: table, loaded: map[uint32]operand{}}
	for len(exprs) > 0 {
		n := 1
		if c, size, ok := d.comparison(exprs); !ok {
			d.statement(exprs[0])
		} else {
			n = size
			before := d.Rule
			if c.add == nil || len(c.spans) == 0 || !c.add(&d, c) {
				d.Rule = before
				d.UnknownIf = exprs[0].Name
			}
		}
		exprs = exprs[n:]
	}
	return d.Rule
}

// comparison returns the condition with which expressions begin, and how many of them it has; not ok if they begin with none. One
// that is not understood has no spans.
func (d *decoder) comparison(exprs []nfnl.Expr) (c comparison, n int, ok bool) {
	register, n := uint32(0), 1
	switch e := typed(exprs[0]).(type) {
	case *expr.Lookup:
		if e.IsDestRegSet && e.DestRegister != unix.NFT_REG_VERDICT {
			return c, n, false
		}
		register, c.not = e.SourceRegister, e.Invert
		if !e.IsDestRegSet {
			c.spans = spans(d.table, e.SetName, d.loaded[register].size)
		}
	case *expr.Range:
		register, c.not, c.spans = e.Register, e.Op == expr.CmpOpNeq, []span{{e.FromData, e.ToData}}
	case *expr.Cmp:
		register, c.not = e.Register, e.Op == expr.CmpOpNeq
		if last, isRange := bound(exprs); isRange {
			n, c.spans = 2, []span{{e.Data, last}}
		} else if e.Op == expr.CmpOpEq || e.Op == expr.CmpOpNeq {
			c.spans = []span{{e.Data, e.Data}}
		}
	default:
		return c, n, false
	}
	c.operand = d.loaded[register]
	return c, n, true
}

// bound returns the last key of a range, if expressions begin with one that is two comparisons.
func bound(exprs []nfnl.Expr) (last []byte, ok bool) {
	if len(exprs) < 2 {
		return nil, false
	}
	least, isFirst := typed(exprs[0]).(*expr.Cmp)
	most, isLast := typed(exprs[1]).(*expr.Cmp)
	if !isFirst || !isLast || least.Op != expr.CmpOpGte || most.Op != expr.CmpOpLte || least.Register != most.Register {
		return nil, false
	}
	return most.Data, true
}

// typed decodes an expression that loads or compares; it returns nil for any other.
func typed(e nfnl.Expr) (kind expr.Any) {
	switch e.Name {
	case "cmp":
		kind = &expr.Cmp{}
	case "range":
		kind = &expr.Range{}
	case "lookup":
		kind = &expr.Lookup{}
	case "bitwise":
		kind = &expr.Bitwise{}
	case "payload":
		kind = &expr.Payload{}
	case "meta":
		kind = &expr.Meta{}
	case "ct":
		kind = &expr.Ct{}
	case "fib":
		kind = &expr.Fib{}
	}
	if kind == nil || expr.Unmarshal(unix.NFPROTO_UNSPEC, e.Data, kind) != nil {
		return nil
	}
	return kind
}

// statement reads an expression that compares nothing.
func (d *decoder) statement(e nfnl.Expr) {
	switch x := typed(e).(type) {
	case *expr.Payload:
		d.loaded[x.DestRegister] = d.field(*x)
	case *expr.Meta:
		if !x.SourceRegister {
			d.loaded[x.Register] = known(x.Key)
		}
	case *expr.Ct:
		d.loaded[x.Register] = operand{}
		if x.Key == expr.CtKeySTATE {
			d.loaded[x.Register] = operand{add: isState, size: 4}
		}
	case *expr.Fib:
		d.loaded[x.Register] = operand{}
		if *x == (expr.Fib{Register: x.Register, ResultADDRTYPE: true, FlagDADDR: true}) {
			d.loaded[x.Register] = operand{add: isType, size: 4}
		}
	case *expr.Bitwise:
		from := d.loaded[x.SourceRegister]
		if from.mask != nil || len(x.Mask) != from.size || !isZero(x.Xor) {
			from = operand{}
		}
		from.mask = x.Mask
		d.loaded[x.DestRegister] = from
	case *expr.Lookup: // a map, whose value is not known
		delete(d.loaded, x.DestRegister)
	default:
		d.act(e)
	}
}

var (
	// harmless are the expressions that let the rule go on as if they were not there.
	harmless = []string{"counter", "log", "notrack", "last"}
	// opaque are those that load what no condition is understood about.
	opaque = []string{"byteorder", "ct", "exthdr", "hash", "numgen", "osf", "rt", "socket", "tunnel", "xfrm"}
)

// act reads an expression that does something to the packet, or is not understood.
func (d *decoder) act(e nfnl.Expr) {
	attrs, _ := nfnl.ParseAttributes(e.Data)
	kind, _ := attrs.Uint32(unix.NFTA_NAT_TYPE) // and NFTA_OBJREF_IMM_TYPE
	switch {
	case slices.Contains(harmless, e.Name), e.Name == "objref" && kind == unix.NFT_OBJECT_COUNTER:
	case slices.Contains(opaque, e.Name):
		clear(d.loaded)
	case e.Name == "masq", e.Name == "nat" && kind == unix.NFT_NAT_SNAT:
		d.Verdict = rules.Masquerade
	case e.Name == "reject":
		d.Verdict = rules.Reject
	case e.Name == "immediate":
		d.decide(e)
	default:
		d.UnknownIf = e.Name
	}
}

var verdicts = map[int32]rules.Verdict{nfnl.Accept: rules.Accept, nfnl.Drop: rules.Drop, unix.NFT_RETURN: rules.Return,
	unix.NFT_JUMP: rules.Jump, unix.NFT_GOTO: rules.Goto}

// decide reads an expression that decides, or loads a value.
func (d *decoder) decide(e nfnl.Expr) {
	v := e.Verdict()
	code, ok := v.Uint32(unix.NFTA_VERDICT_CODE)
	if !ok {
		clear(d.loaded)
		return
	}
	d.Verdict, d.Target = verdicts[int32(code)], v.String(unix.NFTA_VERDICT_CHAIN)
}

// field returns a field of the packet's headers. Which headers those are, the table says, or a condition before it.
func (d *decoder) field(p expr.Payload) operand {
	family, size := d.Family, int(p.Len)
	if family == "" {
		family = nfnl.FamilyName(d.table.Family)
	}
	if p.Base == expr.PayloadBaseTransportHeader && p.Offset == 2 && size == 2 && slices.Contains(withPorts, d.Proto) {
		return operand{add: isPort, size: size}
	}
	h, ok := headers[family]
	switch {
	case !ok || p.Base != expr.PayloadBaseNetworkHeader:
	case p.Offset == h.protocol && size == 1:
		return operand{add: isProtocol, size: size}
	case p.Offset == h.source && size <= h.size:
		return operand{add: func(d *decoder, c comparison) bool { return isAddress(&d.Src, h.size, c) }, size: size}
	case p.Offset == h.source+uint32(h.size) && size <= h.size:
		return operand{add: func(d *decoder, c comparison) bool { return isAddress(&d.Dst, h.size, c) }, size: size}
	}
	return operand{}
}

// headers are where a family's header has what conditions are about. The destination is behind the source.
var headers = map[string]struct {
	protocol, source uint32
	size             int // of an address
}{"ip": {9, 12, 4}, "ip6": {6, 8, 16}}

// withPorts are the protocols whose headers begin with ports.
var withPorts = []string{"tcp", "udp", "udplite", "sctp", "dccp"}

// known returns what is known of a packet beside its headers.
func known(key expr.MetaKey) operand {
	switch key {
	case expr.MetaKeyNFPROTO:
		return operand{add: isFamily, size: 1}
	case expr.MetaKeyPROTOCOL:
		return operand{add: isFamily, size: 2}
	case expr.MetaKeyL4PROTO:
		return operand{add: isProtocol, size: 1}
	case expr.MetaKeyMARK:
		return operand{add: isMark, size: 4}
	case expr.MetaKeyIIFNAME:
		return operand{add: func(d *decoder, c comparison) bool { return isDevice(&d.In, c) }, size: unix.IFNAMSIZ}
	case expr.MetaKeyOIFNAME:
		return operand{add: func(d *decoder, c comparison) bool { return isDevice(&d.Out, c) }, size: unix.IFNAMSIZ}
	case expr.MetaKeyIIF:
		return operand{add: func(d *decoder, c comparison) bool { return d.isIndex(&d.In, c) }, size: 4}
	case expr.MetaKeyOIF:
		return operand{add: func(d *decoder, c comparison) bool { return d.isIndex(&d.Out, c) }, size: 4}
	}
	return operand{}
}
