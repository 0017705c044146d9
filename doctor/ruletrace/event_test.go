package ruletrace

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/nfnl"
)

// captured are messages of Linux 6.18.
var captured = []struct {
	name, bytes string
	want        event // but for its packet
	src, dst    string
	proto       byte
	in, out     uint32
	ether       string // destination
}{
	{
		name: "a rule of the family inet that sets the mark and jumps",
		bytes: "0100000008000f0000000002080004000000000308000600ca8c0c4a0c000200666f72776172640007000100667700000c0003000000000000" +
			"0000031400050008000100fffffffd060002007800000008000e000000000708000a000000000206000b000001000008000c0000000004" +
			"06000d000001000018000800450000244ab740004001dc1b0a0100020a020002140009000800447cb3830000000000000000000012000700" +
			"aa62705bd7ed66f5d5e5f2b708000000",
		want: event{Place: nfnl.Place{Family: unix.NFPROTO_INET, Table: "fw", Chain: "forward"}, id: 0xca8c0c4a, kind: unix.NFT_TRACETYPE_RULE, handle: 3,
			verdict: verdictJump, target: "x", mark: 7},
		src: "10.1.0.2", dst: "10.2.0.2", proto: 1, in: 2, out: 4, ether: "aa:62:70:5b:d7:ed",
	},
	{
		name: "the rule that it jumps to",
		bytes: "0100000008000f0000000002080004000000000308000600ca8c0c4a060002007800000007000100667700000c0003000000000000000004" +
			"0c000500080001000000000008000e0000000007",
		want: event{Place: nfnl.Place{Family: unix.NFPROTO_INET, Table: "fw", Chain: "x"}, id: 0xca8c0c4a, kind: unix.NFT_TRACETYPE_RULE, handle: 4,
			verdict: verdictDrop, mark: 7},
	},
	{
		name: "ARP at the end of a bridge's chain",
		bytes: "0700000008000f000000000708000400000000030800060060b898db0c000200666f72776172640007000100667700000c0005000800010" +
			"0ffffffff08000a000000000306000b000001000008000c000000000506000d00000100002000080000010800060400" +
			"0166f5d5e5f2b70a0100020000000000000a01000312000700ffffffffffff66f5d5e5f2b708060000",
		want: event{Place: nfnl.Place{Family: unix.NFPROTO_BRIDGE, Table: "fw", Chain: "forward"}, id: 0x60b898db, kind: unix.NFT_TRACETYPE_RULE,
			verdict: verdictContinue},
		src: "10.1.0.2", dst: "10.1.0.3", in: 3, out: 5, ether: "ff:ff:ff:ff:ff:ff",
	},
	{
		name:  "the policy of that chain",
		bytes: "0700000008000f000000000708000400000000010800060060b898db0c000200666f72776172640007000100667700000800100000000000",
		want: event{Place: nfnl.Place{Family: unix.NFPROTO_BRIDGE, Table: "fw", Chain: "forward"}, id: 0x60b898db, kind: unix.NFT_TRACETYPE_POLICY,
			verdict: verdictDrop},
	},
}

func TestDecode(t *testing.T) {
	for _, c := range captured {
		t.Run(c.name, func(t *testing.T) {
			data, err := hex.DecodeString(c.bytes)
			if err != nil {
				t.Fatal(err)
			}
			got, err := decode(data)
			if err != nil {
				t.Fatal(err)
			}
			p := got.packet
			got.packet = packet{}
			if got.Place != c.want.Place || got.id != c.want.id || got.kind != c.want.kind || got.handle != c.want.handle ||
				got.verdict != c.want.verdict || got.target != c.want.target || got.mark != c.want.mark {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
			src, dst := p.addresses()
			if c.src == "" {
				if !p.empty() || src.IsValid() || dst.IsValid() {
					t.Errorf("it has a packet: %+v", p)
				}
				return
			}
			if src != netip.MustParseAddr(c.src) || dst != netip.MustParseAddr(c.dst) || p.protocol() != c.proto || p.in != c.in || p.out != c.out {
				t.Errorf("got %s > %s, protocol %d, %+v", src, dst, p.protocol(), p)
			}
			if ether := etherFields[0].text(etherFields[0].of(p.link)); ether != c.ether {
				t.Errorf("got %s, want %s", ether, c.ether)
			}
		})
	}
}

func TestDecodeBroken(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "want at least 4",
		"070000":                           "want at least 4",
		"07000000":                         "names no chain",
		"0700000002000f00":                 "decode a trace message",
		"07000000050004000100000000000000": "decode a trace message",
	} {
		data, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decode(data); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestVerdicts(t *testing.T) {
	for v, want := range map[verdict]string{
		verdictContinue: "continue", verdictBreak: "break", verdictReturn: "return", verdictGoto: "goto", verdictAccept: "accept",
		7<<16 | queueBypass | verdictQueue: "queue", -1<<16 | verdictQueue: "queue", -13<<16 | verdictDrop: "drop", 200: "verdict 200",
	} {
		if got := v.String(); got != want {
			t.Errorf("%#x: got %s, want %s", uint32(v), got, want)
		}
	}
	if number, bypass := (verdict(7<<16|queueBypass) | verdictQueue).queue(); number != 7 || !bypass {
		t.Errorf("got queue %d, bypass %v", number, bypass)
	}
	if number, bypass := (verdict(-1<<16) | verdictQueue).queue(); number != 0xffff || bypass {
		t.Errorf("got queue %d, bypass %v", number, bypass)
	}
}

// FuzzDecode: no message stops the program, and what follows from it neither.
func FuzzDecode(f *testing.F) {
	for _, c := range captured {
		data, err := hex.DecodeString(c.bytes)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, data)
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		set := ruleset{map[nfnl.Place]*chain{}, map[uint16]bool{}}
		var events []event
		for _, data := range [][]byte{one, two, one} {
			e, err := decode(data)
			if err != nil {
				continue
			}
			if e.Table == "" || e.Chain == "" {
				t.Errorf("no chain: %+v", e)
			}
			set.chains[e.Place] = &chain{hook: "forward", rules: []rule{{handle: e.handle, effect: effect{writes: named()}}}}
			events = append(events, e)
		}
		src, dst := netip.Addr{}, netip.Addr{}
		for _, e := range events {
			src, dst = e.packet.addresses()
		}
		for _, m := range follow(events, set, scope{ends: map[netip.Addr]bool{src: true, dst: true}}) {
			_, _ = m.name(), m.final(set.queues)
		}
	})
}

// FuzzRule: no rule stops the program.
func FuzzRule(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 12, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 7})
	f.Fuzz(func(_ *testing.T, data []byte) {
		r, err := nfnl.ParseRule(data)
		if err == nil {
			effectOf(r.Exprs).alters(markChange(0, 1))
		}
	})
}
