package firewall

import (
	"errors"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// tapped is a socket whose answers pass through tap, with the number of the request.
type tapped struct {
	socket
	requests int
	tap      func(n int, replies []netlink.Message) ([]netlink.Message, error)
}

func (s *tapped) Execute(m netlink.Message) ([]netlink.Message, error) {
	replies, err := s.socket.Execute(m)
	if err != nil {
		return nil, err
	}
	s.requests++
	return s.tap(s.requests, replies)
}

// tap makes f read through a tapped socket.
func tap(
	t *testing.T, f *Firewall, through func(n int, replies []netlink.Message) ([]netlink.Message, error),
) *tapped {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &tapped{socket: conn, tap: through}
	f.nf.conn = s
	return s
}

// failing lets the request of a number fail.
func failing(number int) func(int, []netlink.Message) ([]netlink.Message, error) {
	return func(n int, replies []netlink.Message) ([]netlink.Message, error) {
		if n == number {
			return nil, unix.EIO
		}
		return replies, nil
	}
}

// TestRequestFails: whichever request to nf_tables fails, nothing is observed or changed, and the error is returned.
func TestRequestFails(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft", "iptables-nft")
	prepare := func() {
		sh(t, "nft flush ruleset; iptables-nft -A FORWARD -j DROP")
		load(t, "nft -f -", flannelNFT)
		load(t, "iptables-nft-restore --noflush", flannelIPTables)
	}
	prepare()
	start := observe(t, New())
	for name, want := range map[string]netstate.State{
		"observe": start, "nftables": wanted(netstate.NFTables), "iptables": wanted(netstate.IPTables), "nothing": {},
	} {
		for _, change := range append(netstate.Diff(want, start), netstate.Change{}) {
			for n, done := 1, false; !done; n++ {
				f := New()
				s := tap(t, f, failing(n))
				var err error
				if change == (netstate.Change{}) {
					_, err = f.Observe(t.Context())
				} else if chain, ok := change.Want.(netstate.Chain); ok && chain.Mode == netstate.IPTables {
					break // written by iptables
				} else {
					err = f.Apply(t.Context(), netstate.Plan{change})
				}
				if done = s.requests < n; !done && !errors.Is(err, unix.EIO) {
					t.Errorf("%s, %s: request %d fails, and the error is %v", name, change, n, err)
				}
				if left := netstate.Diff(start, observe(t, New())); !done && len(left) > 0 {
					t.Fatalf("%s, %s: request %d fails, and this is changed:\n%s", name, change, n, left)
				} else if done && len(left) > 0 {
					prepare()
				}
				f.Close()
			}
		}
	}
}

// TestRulesChange: what changes while it is read is read again, but not for ever.
func TestRulesChange(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	want := wanted(netstate.NFTables)
	settle(t, New(), want)
	for name, disturb := range map[string]func(n int, replies []netlink.Message){
		"interrupted": func(_ int, replies []netlink.Message) {
			for i := range replies {
				replies[i].Header.Flags |= netlink.DumpInterrupted
			}
		},
		"generation": func(n int, _ []netlink.Message) { sh(t, "nft add table ip other-"+itoa(uint64(n))) },
	} {
		for _, times := range []int{3, 1 << 30} {
			f := New()
			tap(t, f, func(n int, replies []netlink.Message) ([]netlink.Message, error) {
				if n > 1 && n <= times {
					disturb(n, replies)
				}
				return replies, nil
			})
			state, err := f.Observe(t.Context())
			if endless := times > 3; endless != errors.Is(err, errMoved) || !endless && len(netstate.Diff(want, state)) > 0 {
				t.Errorf("%s %d times: %v, the plan is\n%s", name, times, err, netstate.Diff(want, state))
			}
			f.Close()
		}
	}
}
