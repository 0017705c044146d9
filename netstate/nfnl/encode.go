package nfnl

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Pad returns n bytes: b, and zeros.
func Pad(b []byte, n int) []byte {
	padded := make([]byte, n)
	copy(padded, b)
	return padded
}

// Mask keeps those bits of the first register that are set in m.
func Mask(m []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(m)), Mask: m, Xor: make([]byte, len(m))}
}

// Compare compares the first register with data.
func Compare(op expr.CmpOp, data []byte) *expr.Cmp {
	return &expr.Cmp{Op: op, Register: 1, Data: data}
}

// Direction is which address of a packet's header is meant.
type Direction uint8

// The directions.
const (
	Source Direction = iota
	Destination
)

// LoadAddress loads a packet's address, of size bytes, into a register.
func LoadAddress(d Direction, size int, register uint32) *expr.Payload {
	offset := uint32(12)
	if size == 16 {
		offset = 8
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader,
		Offset: offset + uint32(d)*uint32(size), Len: uint32(size)}
}

// ComparePrefix compares an address of a packet with a prefix. As nft does, it loads only the bytes that a prefix of
// whole bytes has.
func ComparePrefix(op expr.CmpOp, d Direction, p netip.Prefix) []expr.Any {
	addr := p.Masked().Addr().AsSlice()
	load := LoadAddress(d, len(addr), 1)
	if p.Bits() > 0 && p.Bits()%8 == 0 {
		load.Len = uint32(p.Bits() / 8)
		return []expr.Any{load, Compare(op, addr[:load.Len])}
	}
	return []expr.Any{load, Mask(maskBytes(p.Bits(), len(addr))), Compare(op, addr)}
}

// CompareLoaded compares the address that an expression loads into the first register with a prefix.
func CompareLoaded(load expr.Any, p netip.Prefix) []expr.Any {
	addr := p.Masked().Addr().AsSlice()
	return []expr.Any{load, Mask(maskBytes(p.Bits(), len(addr))), Compare(expr.CmpOpEq, addr)}
}

// LoadSource loads where a connection's packets come from, or with Destination its replies: an address of size bytes.
func LoadSource(d Direction, size int, register uint32) *expr.Ct {
	key := uint32(unix.NFT_CT_SRC_IP)
	if size == 16 {
		key = unix.NFT_CT_SRC_IP6
	}
	return &expr.Ct{Key: expr.CtKeySRC, Register: register, Direction: key<<8 | uint32(d)} // see correctCt
}

// LoadPort loads the port that a connection's packets come from, or with Destination its replies.
func LoadPort(d Direction, register uint32) *expr.Ct {
	return &expr.Ct{Key: expr.CtKeyPROTOSRC, Register: register, Direction: uint32(d)}
}

// maskBytes returns size bytes whose first bits are set.
func maskBytes(bits, size int) []byte {
	m := make([]byte, size)
	for i := range bits {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return m
}
