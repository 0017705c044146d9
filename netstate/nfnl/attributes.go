package nfnl

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// attrFlags are no part of an attribute's type.
const attrFlags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER

// Attributes is a list of netlink attributes by type.
type Attributes map[uint16][]byte

// ParseAttributes decodes a list of attributes.
func ParseAttributes(b []byte) (Attributes, error) {
	list, err := netlink.UnmarshalAttributes(b)
	if err != nil {
		return nil, err
	}
	m := make(Attributes, len(list))
	for _, a := range list {
		m[a.Type&^attrFlags] = a.Data
	}
	return m, nil
}

// Walk yields a list of attributes by type, up to the first one that is malformed. It allocates nothing: tens of
// thousands of rules and elements are read so.
func Walk(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) > 0 {
			size, ok := first(b)
			if !ok || !yield(binary.NativeEndian.Uint16(b[2:])&^attrFlags, b[unix.NLA_HDRLEN:size]) {
				return
			}
			b = b[min(len(b), align(size)):]
		}
	}
}

// first returns the size of the attribute with which b begins, and whether it is well-formed.
func first(b []byte) (size int, ok bool) {
	if len(b) < unix.NLA_HDRLEN {
		return 0, false
	}
	size = int(binary.NativeEndian.Uint16(b))
	return size, size >= unix.NLA_HDRLEN && size <= len(b)
}

func align(size int) int { return (size + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// check returns an error if a list of attributes is malformed.
func check(b []byte) error {
	for rest := b; len(rest) > 0; {
		size, ok := first(rest)
		if !ok {
			return fmt.Errorf("malformed attributes % x", b)
		}
		rest = rest[min(len(rest), align(size)):]
	}
	return nil
}

// Uint32 returns an attribute of four bytes in network order, and whether it is there.
func (m Attributes) Uint32(t uint16) (uint32, bool) {
	if len(m[t]) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(m[t]), true
}

// String returns an attribute that is a text.
func (m Attributes) String(t uint16) string { return CString(m[t]) }

// CString returns the text that ends with the first NUL.
func CString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// DataValue returns the NFTA_DATA_VALUE in nested.
func DataValue(nested []byte) []byte {
	attrs, _ := ParseAttributes(nested)
	return attrs[unix.NFTA_DATA_VALUE]
}

// Before returns the key of a set before another one.
func Before(key []byte) []byte {
	key = slices.Clone(key)
	for i := len(key) - 1; i >= 0; i-- {
		if key[i]--; key[i] != 0xff {
			break
		}
	}
	return key
}

// equalAttributes reports whether got has all attributes of want, and others only if they are zero.
func equalAttributes(got, want []byte) bool {
	for rest := want; len(rest) > 0; {
		size, ok := first(rest)
		if !ok {
			return false
		}
		kind, equal := binary.NativeEndian.Uint16(rest[2:]), bytes.Equal
		if kind&unix.NLA_F_NESTED != 0 { // the kernel leaves this flag out
			equal = equalAttributes
		}
		data, ok := find(got, kind&^attrFlags)
		if !ok || !equal(data, rest[unix.NLA_HDRLEN:size]) {
			return false
		}
		rest = rest[min(len(rest), align(size)):]
	}
	for kind, data := range Walk(got) {
		if _, ok := find(want, kind); !ok && !isZero(data) {
			return false
		}
	}
	return check(got) == nil
}

// find returns the only attribute of a type.
func find(b []byte, kind uint16) (data []byte, ok bool) {
	for t, d := range Walk(b) {
		if t == kind && ok {
			return nil, false
		} else if t == kind {
			data, ok = d, true
		}
	}
	return data, ok
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
