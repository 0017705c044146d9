package ruletrace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/nfnl"
)

// event is one message of nf_tables' trace (NFTA_TRACE_ in linux/netfilter/nf_tables.h).
type event struct {
	nfnl.Place

	id      uint32 // of the packet, for as long as the kernel has it
	kind    uint32 // NFT_TRACETYPE_
	handle  uint64 // of the rule; 0: none
	verdict verdict
	target  string // chain of a jump
	mark    uint32
	packet  packet // empty in all but the first message of a base chain
}

// packet is the beginning of a packet's headers.
type packet struct {
	in, out                  uint32 // interface indexes
	link, network, transport []byte
}

func (p packet) empty() bool { return len(p.network) == 0 }

// verdict is what nf_tables does next: an NF_ verdict, or one of nf_tables' own, which are negative.
type verdict int32

// The verdicts of NFT_, and of NF_ in the lower 8 bits.
const (
	verdictContinue verdict = -1
	verdictBreak    verdict = -2
	verdictJump     verdict = -3
	verdictGoto     verdict = -4
	verdictReturn   verdict = -5
	verdictDrop     verdict = 0
	verdictAccept   verdict = 1
	verdictStolen   verdict = 2
	verdictQueue    verdict = 3
	verdictMask             = 0xff
	// queueBypass lets a packet pass if nobody listens (NF_VERDICT_FLAG_QUEUE_BYPASS).
	queueBypass = 0x8000
)

var verdictNames = map[verdict]string{
	verdictContinue: "continue", verdictBreak: "break", verdictJump: "jump", verdictGoto: "goto", verdictReturn: "return",
	verdictDrop: "drop", verdictAccept: "accept", verdictStolen: "stolen", verdictQueue: "queue",
}

// base returns the verdict without what is packed with it: a queue's number, a drop's errno.
func (v verdict) base() verdict {
	if v < 0 {
		if _, ok := verdictNames[v]; ok {
			return v
		}
	}
	return v & verdictMask
}

func (v verdict) String() string {
	if name, ok := verdictNames[v.base()]; ok {
		return name
	}
	return fmt.Sprintf("verdict %d", int32(v))
}

// queue returns the number of the queue, and whether the packet passes if nobody listens.
func (v verdict) queue() (number uint16, bypass bool) { return uint16(v >> 16), v&queueBypass != 0 }

// stops reports whether the packet does not go on after the event, as far as its verdict says.
func (e event) stops() bool {
	v := e.verdict.base()
	return v == verdictDrop || v == verdictStolen || v == verdictQueue
}

// decode reads the payload of an NFT_MSG_TRACE: struct nfgenmsg, then attributes.
func decode(data []byte) (event, error) {
	if len(data) < 4 {
		return event{}, fmt.Errorf("decode a trace message of %d bytes: want at least 4", len(data))
	}
	e := event{Place: nfnl.Place{Family: nftables.TableFamily(data[0])}, verdict: verdictContinue}
	ad, err := netlink.NewAttributeDecoder(data[4:])
	if err != nil {
		return event{}, fmt.Errorf("decode a trace message: %w", err)
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		e.attribute(ad)
	}
	if err := ad.Err(); err != nil {
		return event{}, fmt.Errorf("decode a trace message: %w", err)
	}
	if e.Table == "" || e.Chain == "" {
		return event{}, errors.New("decode a trace message: it names no chain")
	}
	return e, nil
}

func (e *event) attribute(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_TRACE_TABLE:
		e.Table = ad.String()
	case unix.NFTA_TRACE_CHAIN:
		e.Chain = ad.String()
	case unix.NFTA_TRACE_RULE_HANDLE:
		e.handle = ad.Uint64()
	case unix.NFTA_TRACE_TYPE:
		e.kind = ad.Uint32()
	case unix.NFTA_TRACE_ID:
		e.id = ad.Uint32()
	case unix.NFTA_TRACE_VERDICT:
		ad.Nested(e.verdictAttribute)
	case unix.NFTA_TRACE_POLICY:
		e.verdict = verdict(ad.Uint32())
	case unix.NFTA_TRACE_MARK:
		e.mark = ad.Uint32()
	case unix.NFTA_TRACE_IIF:
		e.packet.in = ad.Uint32()
	case unix.NFTA_TRACE_OIF:
		e.packet.out = ad.Uint32()
	case unix.NFTA_TRACE_LL_HEADER:
		e.packet.link = bytes.Clone(ad.Bytes())
	case unix.NFTA_TRACE_NETWORK_HEADER:
		e.packet.network = bytes.Clone(ad.Bytes())
	case unix.NFTA_TRACE_TRANSPORT_HEADER:
		e.packet.transport = bytes.Clone(ad.Bytes())
	}
}

func (e *event) verdictAttribute(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_VERDICT_CODE:
			e.verdict = verdict(ad.Uint32())
		case unix.NFTA_VERDICT_CHAIN:
			e.target = ad.String()
		}
	}
	return nil
}
