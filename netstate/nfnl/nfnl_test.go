package nfnl

import (
	"bytes"
	"testing"

	"github.com/mdlayher/netlink"
)

// TestUserComment: a comment is found among other user data; what is cut short is none.
func TestUserComment(t *testing.T) {
	for data, want := range map[string]string{
		"": "", "\x00": "", "\x00\x03ab\x00": "ab", "\x01\x02xx\x00\x02a\x00": "a", "\x00\x04ab": "", "\x01\x01x": "",
		"\x02\x00\x00\x01\x00": "",
	} {
		if got := userComment([]byte(data)); got != want {
			t.Errorf("% x: %q, want %q", data, got, want)
		}
	}
}

// FuzzWalk: a well-formed list of attributes is read as another reader does, and any other without harm.
func FuzzWalk(f *testing.F) {
	f.Add([]byte{8, 0, 1, 0x80, 0, 0, 0, 1, 5, 0, 2, 0, 7})
	f.Add([]byte{4, 0, 1, 0, 3, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var got []netlink.Attribute
		for kind, d := range Walk(data) {
			got = append(got, netlink.Attribute{Type: kind, Data: d})
		}
		want, err := netlink.UnmarshalAttributes(data)
		if check(data) != nil {
			return
		}
		if err != nil || len(got) != len(want) {
			t.Fatalf("% x: got %v, want %v, %v", data, got, want, err)
		}
		for i := range want {
			if got[i].Type != want[i].Type&^attrFlags || !bytes.Equal(got[i].Data, want[i].Data) {
				t.Errorf("% x: got %v, want %v", data, got, want)
			}
		}
	})
}

// TestEqualAttributes: an attribute that is missing, twice there or not wanted makes a difference, unless it is zero.
func TestEqualAttributes(t *testing.T) {
	const one, two = "\x08\x00\x01\x00\x00\x00\x00\x01", "\x08\x00\x02\x00\x00\x00\x00\x02"
	const zero = "\x08\x00\x03\x00\x00\x00\x00\x00"
	for _, test := range []struct {
		got, want string
		equal     bool
	}{
		{"", "", true}, {one, one, true}, {one + two, two + one, true}, {one + zero, one, true},
		{one, one + zero, false}, {one + two, one, false}, {one, one + two, false}, {one + one, one, false},
		{one, two, false}, {one + "\x03", one, false}, {one, one + "\x03", false},
		{"\x0c\x00\x05\x00" + one, "\x0c\x00\x05\x80" + one, true},
		{"\x0c\x00\x05\x00" + two, "\x0c\x00\x05\x80" + one, false},
	} {
		if got := equalAttributes([]byte(test.got), []byte(test.want)); got != test.equal {
			t.Errorf("% x and % x: got %v", test.got, test.want, got)
		}
	}
}
