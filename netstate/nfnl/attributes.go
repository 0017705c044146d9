package nfnl

import (
	"bytes"
	"encoding/binary"
	"iter"

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
// thousands of elements are read so.
func Walk(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.NLA_HDRLEN {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.NLA_HDRLEN || size > len(b) ||
				!yield(binary.NativeEndian.Uint16(b[2:])&^attrFlags, b[unix.NLA_HDRLEN:size]) {
				return
			}
			b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
		}
	}
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

// equalAttributes reports whether got has all attributes of want, and others only if they are zero.
func equalAttributes(got, want []byte) bool {
	m, err := ParseAttributes(got)
	list, wantErr := netlink.UnmarshalAttributes(want)
	if err != nil || wantErr != nil {
		return false
	}
	for _, w := range list {
		equal := bytes.Equal
		if w.Type&unix.NLA_F_NESTED != 0 { // the kernel leaves this flag out
			equal = equalAttributes
		}
		data, ok := m[w.Type&^attrFlags]
		if !ok || !equal(data, w.Data) {
			return false
		}
		delete(m, w.Type&^attrFlags)
	}
	for _, data := range m {
		if len(bytes.Trim(data, "\x00")) > 0 {
			return false
		}
	}
	return true
}
