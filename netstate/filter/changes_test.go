package filter

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// flood is packets that two clients send to the server as fast as they can: a stranger, of which none may arrive, and a
// friend, one for twenty of the stranger's, of which all may.
type flood struct {
	leaked, passed atomic.Int64
	read           atomic.Bool // all that was sent
	friend         net.Conn
	end            chan struct{}
	sent           chan int64 // by the friend
}

func startFlood(t *testing.T, w world) *flood {
	t.Helper()
	f := &flood{end: make(chan struct{}), sent: make(chan int64, 1)}
	w.serverSide.do(func() {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: 9})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { conn.Close() })
		raw, err := conn.SyscallConn()
		if err == nil { // a receiver that is late must not lose any
			err = raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
			})
		}
		if err != nil {
			t.Error(err)
		}
		go f.receive(w, conn)
	})
	stranger, err := w.clientSpace.dial("udp", w.client, w.port(9))
	if err != nil {
		t.Fatal(err)
	}
	friend, err := w.clientSpace.dial("udp", w.friend, w.port(9))
	if err != nil {
		t.Fatal(err)
	}
	f.friend = friend
	go f.send(stranger, friend)
	return f
}

func (f *flood) receive(w world, conn *net.UDPConn) {
	for {
		data := make([]byte, 64)
		switch n, from, err := conn.ReadFromUDPAddrPort(data); {
		case err != nil:
			return
		case string(data[:n]) == last:
			f.read.Store(true)
		case from.Addr().Unmap() == w.client:
			f.leaked.Add(1)
		default:
			f.passed.Add(1)
		}
	}
}

func (f *flood) send(stranger, friend net.Conn) {
	for count := int64(0); ; count++ {
		select {
		case <-f.end:
			f.sent <- count
			return
		default:
			for range 20 {
				stranger.Write([]byte("x"))
			}
			friend.Write([]byte("x"))
		}
	}
}

// last is what the friend sends when the flood is over.
const last = "last"

// stop ends the flood, and returns how many of the stranger's packets arrived, and of the friend's, and how many the
// friend sent.
func (f *flood) stop(t *testing.T) (leaked, passed, sent int64) {
	t.Helper()
	close(f.end)
	sent = <-f.sent
	testwait.Until(t, "the receiver has read all that was sent", func() bool {
		f.friend.Write([]byte(last))
		return f.read.Load()
	})
	return f.leaked.Load(), f.passed.Load(), sent
}

// TestNothingLeaks: while base chains are replaced, pods go to other chains and the table is made again, not one packet
// passes that may not, and almost every one that may: one on its way through a table that is made again finds nothing in
// the old sets. So who is not found in the map must be dropped, as tables of policies do.
func TestNothingLeaks(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	f, worlds := open(t), worlds(t)
	want := isolated(worlds)
	for _, w := range worlds {
		want.Add(netstate.Filter{Family: w.family, Name: "in-1", Rules: "saddr @pods-1 udp dport 9 accept\ncounter drop"},
			netstate.Filter{Family: w.family, Name: "in-2", Rules: "saddr @pods-1 accept\ndrop"})
	}
	settle(t, f, want)
	flood := startFlood(t, worlds[0])
	for i := range 60 {
		next := fmt.Sprintf("goto in-%d", 1+i%2)
		for _, w := range worlds {
			want.Add(netstate.Element{Set: "ingress", Prefix: netstate.Host(w.server), Verdict: next},
				netstate.Hook{Family: w.family, Rules: fmt.Sprintf("udp dport %d drop\njump ingress", 1000+i)})
		}
		if i%3 == 0 {
			sh(t, "nft 'add set ip twill-policy other { type mark; }'")
		}
		settle(t, f, want)
	}
	leaked, passed, sent := flood.stop(t)
	if leaked > 0 || passed < sent*99/100 || sent < 100 {
		t.Errorf("%d packets leaked; %d of %d passed", leaked, passed, sent)
	}
	t.Logf("%d packets passed, %d were dropped", passed, 20*sent)
}

// judged are chains by which the server lets the friend in and the stranger not, in one of three ways. They have other
// names in each generation, and so have the sets.
func judged(w world, generation int) (all []netstate.Object) {
	chain, set := fmt.Sprint("in-", generation), fmt.Sprint("pods-", generation)
	member, rules := w.friend, "saddr @"+set+" return\ncounter drop"
	switch generation % 3 {
	case 1: // a rule that denies, and others after it
		member, rules = w.client, "saddr @"+set+" counter drop\nreturn"
	case 2: // the same in a chain of its own, behind another one
		member, rules = w.client, "tcp dport 7 return\ngoto "+chain+"-b"
		all = append(all, netstate.Filter{Family: w.family, Name: chain + "-b", Rules: "saddr @" + set + " counter drop\nreturn"})
	}
	return append(all,
		netstate.Filter{Family: w.family, Name: chain, Rules: rules},
		netstate.Set{Family: w.family, Name: set, Type: netstate.Addresses},
		netstate.Element{Set: set, Prefix: netstate.Host(member)},
		netstate.Element{Set: "ingress", Prefix: netstate.Host(w.server), Verdict: "goto " + chain},
	)
}

// TestReplacedChains: a policy that changes makes other chains and other sets. Meanwhile not one packet passes that neither
// the old nor the new ones allow, and none is lost that both allow.
func TestReplacedChains(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	f, w := open(t), worlds(t)[0]
	// A packet needs a while to the map: long enough that the table often changes meanwhile.
	slow := strings.Repeat("udp dport 7 drop\n", 300)
	table := func(generation int) netstate.State {
		state := netstate.State{}
		state.Add(judged(w, generation)...)
		state.Add(
			netstate.Hook{Family: w.family, Rules: slow + "ct related accept\njump ingress"},
			netstate.Filter{Family: w.family, Name: "ingress", Rules: "daddr vmap @ingress"},
			netstate.Set{Family: w.family, Name: "ingress", Type: netstate.Verdicts},
		)
		return state
	}
	have := table(0)
	settle(t, f, have)
	flood := startFlood(t, w)
	for i := range 300 {
		want := table(i + 1)
		apply(t, f, netstate.Diff(want, have))
		have = want
	}
	leaked, passed, sent := flood.stop(t)
	if leaked > 0 || passed < sent || sent < 100 {
		t.Errorf("%d packets leaked; %d of %d passed", leaked, passed, sent)
	}
	t.Logf("%d packets passed, %d were dropped", passed, 20*sent)
}

// TestRemovedTable: when all tables go, no packet is lost that their rules allow. The stranger's are dropped behind them.
func TestRemovedTable(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	need(t, "nft")
	f, w := open(t), worlds(t)[0]
	sh(t, `nft 'table ip after { chain forward { type filter hook forward priority 10; ip saddr `+w.client.String()+` drop; }; }'`)
	want := netstate.NewState(
		netstate.Hook{Family: w.family, Rules: strings.Repeat("udp dport 7 drop\n", 300) + "jump ingress"}, // slow, as above
		netstate.Filter{Family: w.family, Name: "ingress", Rules: fmt.Sprintf("daddr vmap @ingress\ndaddr %s counter drop", netstate.Host(w.server))},
		netstate.Set{Family: w.family, Name: "ingress", Type: netstate.Verdicts},
		netstate.Element{Set: "ingress", Prefix: netstate.Host(w.server), Verdict: "return"})
	flood := startFlood(t, w)
	for range 100 {
		apply(t, f, netstate.Diff(want, nil))
		apply(t, f, netstate.Diff(nil, want))
	}
	if have := observe(t, f, nil); len(have) > 0 {
		t.Errorf("there is left:\n%s", have)
	}
	if _, passed, sent := flood.stop(t); passed < sent || sent < 100 {
		t.Errorf("%d of %d packets passed", passed, sent)
	}
}
