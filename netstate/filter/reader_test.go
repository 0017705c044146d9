package filter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// tapped is a socket whose answers pass through tap, with the number of the request.
type tapped struct {
	nfnl.Socket
	requests int
	tap      func(n int, replies []netlink.Message) ([]netlink.Message, error)
}

func (s *tapped) Execute(m netlink.Message) ([]netlink.Message, error) {
	replies, err := s.Socket.Execute(m)
	if err != nil {
		return nil, err
	}
	s.requests++
	return s.tap(s.requests, replies)
}

// tap makes f read through a tapped socket.
func tap(
	t *testing.T, f *Filter, through func(n int, replies []netlink.Message) ([]netlink.Message, error),
) *tapped {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.nf.Close()
	s := &tapped{Socket: conn, tap: through}
	f.nf.Socket = s
	return s
}

// TestNoNFTables: a kernel without nf_tables is named in one sentence.
func TestNoNFTables(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for _, errno := range []unix.Errno{unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EPERM} {
		f := &Filter{}
		tap(t, f, func(int, []netlink.Message) ([]netlink.Message, error) { return nil, errno })
		err := f.check()
		if !errors.Is(err, errno) || strings.Contains(err.Error(), "CONFIG_NF_TABLES") != (errno != unix.EPERM) {
			t.Errorf("%v: got %v", errno, err)
		}
		f.Close()
	}
}

// TestRequestFails: whichever request fails, nothing is observed, nothing is changed in that family, and the error is returned.
func TestRequestFails(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f, want := open(t), policies(t)
	settle(t, f, want)
	more := netstate.Plan{{Want: netstate.Element{Set: pods, Prefix: pod(9)}}}
	for name, try := range map[string]func() error{
		"observe": func() error { _, err := f.Observe(t.Context(), want); return err },
		"write":   func() error { return f.Apply(t.Context(), more) },
		"delete":  func() error { return f.Apply(t.Context(), netstate.Diff(nil, want)) },
	} {
		for n := 1; ; n++ {
			s := tap(t, f, func(i int, replies []netlink.Message) ([]netlink.Message, error) {
				if i == n {
					return nil, unix.EIO
				}
				return replies, nil
			})
			err := try()
			if s.requests < n {
				if n == 1 {
					t.Errorf("%s: no request", name)
				}
				break
			}
			if !errors.Is(err, unix.EIO) {
				t.Errorf("%s: request %d fails, and the error is %v", name, n, err)
			}
			changed := map[netstate.Family]bool{}
			for _, c := range netstate.Diff(want, observe(t, open(t), want)) {
				changed[familyOf(c)] = true
			}
			if most := map[string]int{"delete": len(families) - 1}[name]; len(changed) > most {
				t.Fatalf("%s: request %d fails, and families are changed: %v", name, n, changed)
			}
			f.nf.Close()
			settle(t, f, want)
		}
		f.nf.Close()
		settle(t, f, want)
	}
}

// TestMoves: what changes while it is read is read again, but not for ever.
func TestMoves(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	want := policies(t)
	settle(t, open(t), want)
	for name, disturb := range map[string]func(n int, replies []netlink.Message){
		"interrupted": func(_ int, replies []netlink.Message) {
			for i := range replies {
				replies[i].Header.Flags |= netlink.DumpInterrupted
			}
		},
		"generation": func(n int, _ []netlink.Message) { sh(t, fmt.Sprint("nft add table ip other-", n)) },
	} {
		for _, times := range []int{3, 1 << 30} {
			f := open(t)
			tap(t, f, func(n int, replies []netlink.Message) ([]netlink.Message, error) {
				if n > 1 && n <= times {
					disturb(n, replies)
				}
				return replies, nil
			})
			state, err := f.Observe(t.Context(), want)
			plan := netstate.Diff(want, state)
			if endless := times > 3; endless != errors.Is(err, nfnl.ErrMoved) || !endless && len(plan) > 0 {
				t.Errorf("%s %d times: %v, the plan is\n%s", name, times, err, plan)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := open(t).Observe(ctx, want); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context: %v", err)
	}
}

// TestAlteredSets: whatever is changed in an attribute that the kernel reports of a set, or added to it, the set is
// none of ours, unless it only describes.
func TestAlteredSets(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f := open(t)
	settle(t, f, policies(t))
	free := map[uint16]bool{
		unix.NFTA_SET_TABLE: true, unix.NFTA_SET_NAME: true, setHandle: true, unix.NFTA_SET_USERDATA: true,
		unix.NFTA_SET_DATA_LEN: true, // that of a verdict is fixed
		unix.NFTA_SET_DESC:     true, // the lengths of a key's parts tell nft how to print it
		setKind:                true, setCount: true,
	}
	for _, family := range netstate.Families {
		r := f.reader()
		for _, m := range r.Call(unix.NFT_MSG_GETSET, netlink.Dump, family, netstate.FilterTable) {
			attrs := r.Attributes(m.Data[4:])
			kind, ok := parseSet(attrs).typeOf(family)
			if !ok {
				t.Fatalf("the set %s is none of ours: %v", attrs.String(unix.NFTA_SET_NAME), attrs)
			}
			for _, added := range []uint16{unix.NFTA_SET_TIMEOUT, unix.NFTA_SET_GC_INTERVAL, setExpr, setExpressions,
				unix.NFTA_SET_OBJ_TYPE} {
				attrs[added] = []byte{0, 0, 0, 1}
				if _, ok := parseSet(attrs).typeOf(family); ok {
					t.Errorf("a set of type %q with the attribute %d is ours", kind, added)
				}
				delete(attrs, added)
			}
			limited := nfnl.Attributes{unix.NFTA_SET_DESC: {8, 0, unix.NFTA_SET_DESC_SIZE, 0, 0, 0, 0, 9}}
			for t, data := range attrs {
				if t != unix.NFTA_SET_DESC {
					limited[t] = data
				}
			}
			if _, ok := parseSet(limited).typeOf(family); ok {
				t.Errorf("a set of type %q of nine elements is ours", kind)
			}
			for id, data := range attrs {
				for at := range data {
					data[at] ^= 1
					if other, ok := parseSet(attrs).typeOf(family); ok && other == kind && !free[id] {
						t.Errorf("type %q: byte %d of the attribute %d can be changed", kind, at, id)
					}
					data[at] ^= 1
				}
			}
		}
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

// Attributes of sets that newer kernels report.
const (
	setHandle = 16 // NFTA_SET_HANDLE
	setKind   = 19 // NFTA_SET_TYPE
	setCount  = 20 // NFTA_SET_COUNT
)

// TestKeys: a key that no element of ours has is an error.
func TestKeys(t *testing.T) {
	for _, test := range []struct {
		kind netstate.SetType
		key  string
		ok   bool
	}{
		{netstate.Addresses, "\x0a\x00\x00\x01", true},
		{netstate.Addresses, "\x0a\x00\x00", false},
		{netstate.Addresses, "\x0a\x00\x00\x01\x00", false},
		{netstate.Addresses, "", false},
		{netstate.Verdicts, "\x0a\x00\x00\x01", true},
		{netstate.Selves, "\x0a\x00\x00\x01\x0a\x00\x00\x01", true},
		{netstate.Selves, "\x0a\x00\x00\x01\x0a\x00\x00\x02", false},
		{netstate.Selves, "\x0a\x00\x00\x01", false},
		{netstate.NamedPorts, "\x0a\x00\x00\x01\x06\x00\x00\x00\x00\x50\x00\x00", true},
		{netstate.NamedPorts, "\x0a\x00\x00\x01\x06\x01\x00\x00\x00\x50\x00\x00", false},
		{netstate.NamedPorts, "\x0a\x00\x00\x01\x06\x00\x01\x00\x00\x50\x00\x00", false},
		{netstate.NamedPorts, "\x0a\x00\x00\x01\x06\x00\x00\x01\x00\x50\x00\x00", false},
		{netstate.NamedPorts, "\x0a\x00\x00\x01\x06\x00\x00\x00\x00\x50\x01\x00", false},
		{netstate.NamedPorts, "\x0a\x00\x00\x01\x06\x00\x00\x00\x00\x50\x00\x01", false},
		{netstate.NamedPorts, "\x0a\x00\x00\x01\x06\x00\x00\x00\x00\x50", false},
	} {
		objects, err := decodeElements(netstate.IPv4, "s", test.kind, []rawElement{{key: []byte(test.key)}})
		if (err == nil) != test.ok {
			t.Errorf("%s % x: got %v, %v", test.kind, test.key, objects, err)
		}
	}
	end := []rawElement{{key: []byte{1, 2, 3, 4}, end: true}}
	if _, err := decodeElements(netstate.IPv4, "s", netstate.Addresses, end); err == nil {
		t.Error("the end of a range is an address")
	}
}

// FuzzElement: no element is too strange to be read, and one that is read as one of ours is written the same.
func FuzzElement(f *testing.F) {
	f.Add([]byte{12, 0, 1, 0, 8, 0, 1, 0, 10, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		raw := parseElement(data)
		for _, kind := range types {
			objects, err := decodeElements(netstate.IPv4, "s", kind, []rawElement{raw})
			if err != nil || len(objects) != 1 || raw.extra != "" {
				continue
			}
			e, err := encodeElement(kind, objects[0].(netstate.Element))
			if err == nil && string(e[0].Key) != string(raw.key) {
				t.Errorf("% x is read as %s, and written as % x", raw.key, objects[0], e[0].Key)
			}
		}
	})
}
