package nfnl

import (
	"bytes"
	"iter"
	"os"
	"testing"
	"time"

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

// slow is a kernel whose answer to a request has many messages, and a socket that counts deadlines.
type slow struct {
	netlink.Socket
	seq, deadlines int
}

func (s *slow) Send(m netlink.Message) error {
	s.seq = int(m.Header.Sequence)
	return nil
}

func (s *slow) ReceiveIter() iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) {
		header := netlink.Header{Flags: netlink.Multi, Sequence: uint32(s.seq), PID: 1}
		for i := range 10 {
			if s.deadlines != i {
				yield(netlink.Message{}, os.ErrDeadlineExceeded)
				return
			}
			if !yield(netlink.Message{Header: header, Data: []byte{byte(i)}}, nil) {
				return
			}
		}
		header.Type = netlink.Done
		yield(netlink.Message{Header: header, Data: make([]byte, 4)}, nil)
	}
}

func (s *slow) SetDeadline(time.Time) error      { s.deadlines++; return nil }
func (s *slow) SetReadDeadline(time.Time) error  { return nil }
func (s *slow) SetWriteDeadline(time.Time) error { return nil }

// TestPatience: each message of an answer has the time that the first one had.
func TestPatience(t *testing.T) {
	s := &slow{}
	answers, err := patient{netlink.NewConn(s, 1)}.Execute(netlink.Message{})
	if err != nil || len(answers) != 10 || s.deadlines != 10 {
		t.Errorf("%d messages, %d deadlines: %v", len(answers), s.deadlines, err)
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
