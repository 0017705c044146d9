package firewall

import (
	"errors"
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
	t *testing.T, f *Firewall, through func(n int, replies []netlink.Message) ([]netlink.Message, error),
) *tapped {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &tapped{Socket: conn, tap: through}
	f.nf.Socket = s
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
	judge := New() // it reads again what another generation of the rules has
	defer judge.Close()
	start := observe(t, judge)
	for name, want := range map[string]netstate.State{
		"observe": start, "nftables": wanted(netstate.NFTables), "iptables": wanted(netstate.IPTables), "nothing": {},
	} {
		for _, change := range append(netstate.Diff(want, start), netstate.Change{}) {
			for n, done := 1, false; !done; n++ {
				f := fresh(judge)
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
				if left := netstate.Diff(start, observe(t, judge)); !done && len(left) > 0 {
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
			plan := netstate.Diff(want, state)
			if endless := times > 3; endless != errors.Is(err, nfnl.ErrMoved) || !endless && len(plan) > 0 {
				t.Errorf("%s %d times: %v, the plan is\n%s", name, times, err, plan)
			}
			f.Close()
		}
	}
}

// withoutNF answers as a kernel without nf_tables.
func withoutNF(int, []netlink.Message) ([]netlink.Message, error) { return nil, unix.EOPNOTSUPP }

// TestNoNFTables: a kernel without nf_tables has no chains there, and none to delete.
func TestNoNFTables(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	useVariant(t, legacy)
	f := New()
	defer f.Close()
	tapped := func() *Firewall {
		tap(t, f, withoutNF) // again, because an error closes the socket
		return f
	}
	if state, err := tapped().Observe(t.Context()); len(state) > 0 || err != nil {
		t.Errorf("observed %s, %v", state, err)
	}
	for _, change := range netstate.Diff(wanted(netstate.IPTables), netstate.State{}) {
		for _, c := range []netstate.Change{change, {Was: change.Want}} {
			if err := tapped().Apply(t.Context(), netstate.Plan{c}); err != nil {
				t.Errorf("%s: %v", c, err)
			}
		}
	}
}

// TestPickWithout: what the kernel or the host lacks decides, or the error names it.
func TestPickWithout(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "iptables-legacy", "ip6tables-legacy")
	yes, no, path := true, false, pathVar()
	for name, c := range map[string]struct {
		configured *bool
		path       string
		nf         bool
		want       netstate.Mode
		text       string // of the reason or the error
		fails      bool
	}{
		"nf_tables":                        {nil, path, false, netstate.IPTables, "the kernel has no nf_tables", false},
		"nf_tables, which is configured":   {&yes, path, false, 0, "use nftables as the config says", true},
		"nf_tables, iptables configured":   {&no, path, false, netstate.IPTables, "EnableNFTables false", false},
		"both":                             {nil, "", false, 0, "want a kernel with nf_tables or the iptables", true},
		"iptables":                         {nil, "", true, netstate.NFTables, "the kernel has nf_tables", false},
		"iptables, which is configured":    {&no, "", true, 0, "use iptables as the config says", true},
		"nothing, and both are possible":   {nil, path, true, netstate.NFTables, "the kernel has nf_tables", false},
		"iptables, which is not asked for": {&yes, "", true, netstate.NFTables, "EnableNFTables", false},
	} {
		t.Setenv("PATH", c.path)
		f := New()
		if !c.nf {
			tap(t, f, withoutNF)
		}
		mode, reason, err := f.pick(c.configured)
		if err != nil {
			reason = err.Error()
		}
		if mode != c.want || (err != nil) != c.fails || !strings.Contains(reason, c.text) {
			t.Errorf("without %s: got %s, %q, %v", name, mode, reason, err)
		}
		f.Close()
	}
}

// TestFits: a chain with another header has to be made again.
func TestFits(t *testing.T) {
	for _, family := range netstate.Families {
		for _, role := range roles {
			want := nativeChain(family, role)
			c := nfnl.Chain{Kind: string(want.Type), Hook: uint32(*want.Hooknum), Priority: uint32(*want.Priority),
				Policy: nfnl.Accept}
			if !c.Fits(want) {
				t.Errorf("%s %s does not fit itself", family, role)
			}
			for _, alter := range []func(c *nfnl.Chain){
				func(c *nfnl.Chain) { c.Kind = "route" }, func(c *nfnl.Chain) { c.Hook++ },
				func(c *nfnl.Chain) { c.Priority++ },
				func(c *nfnl.Chain) { c.Policy = nfnl.Drop }, func(c *nfnl.Chain) { c.Device = true },
			} {
				altered := c
				if alter(&altered); altered.Fits(want) {
					t.Errorf("%s %s: %+v fits", family, role, altered)
				}
			}
		}
	}
}
