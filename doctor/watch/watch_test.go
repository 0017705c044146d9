package watch_test

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor/drops"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/ruletrace"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/packet"
)

var near, far = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")

// pair makes two namespaces with a wire.
func pair(t *testing.T) (hosts [2]host.Host, places []watch.Place) {
	t.Helper()
	hosts = [2]host.Host{{Name: "twill-watch-a"}, {Name: "twill-watch-b"}}
	for _, h := range hosts {
		_ = h.Delete() // what a crashed run left
		if err := h.Create(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Delete() })
		places = append(places, watch.Place{Host: h.Name, Do: h.Do})
	}
	run(t, hosts[0], "ip link add wire type veth peer name wire netns "+hosts[1].Name)
	for i, a := range []netip.Addr{near, far} {
		run(t, hosts[i], "ip link set lo up; ip link set wire up; ip addr add "+a.String()+"/24 dev wire")
	}
	testwait.Until(t, "the wire carries", func() bool { return ping(t, hosts[0]) })
	return hosts, places
}

func run(t *testing.T, h host.Host, command string) {
	t.Helper()
	if _, err := h.Exec(t.Context(), "sh", "-ec", command); err != nil {
		t.Fatal(err)
	}
}

func ping(t *testing.T, from host.Host) bool {
	t.Helper()
	_, err := from.Ping(t.Context(), host.Ping{To: far, Timeout: 300 * time.Millisecond})
	return err == nil
}

// TestWhile: of a packet that a rule drops, one record has the devices that it was on, the kernel's reason and the rule, each at
// its place, and nothing of what happens before and after.
func TestWhile(t *testing.T) {
	hosts, places := pair(t)
	run(t, hosts[1], "nft add table ip f; nft add chain ip f in '{ type filter hook input priority 0; }'; nft add rule ip f in icmp type echo-request drop")
	o := watch.Options{Places: places, Drops: true, Rules: []ruletrace.Pair{{A: near, B: far}},
		Match: func(f packet.Frame) bool { return f.IsRequest(far) }}
	ping(t, hosts[0])
	r, err := watch.While(o, func() error { ping(t, hosts[0]); return nil })
	ping(t, hosts[0])
	if err != nil || len(r.Views) != 2 || len(r.Unread) > 0 {
		t.Fatalf("got %+v, %v", r, err)
	}
	for i, out := range []bool{true, false} {
		v := r.Views[i]
		if len(v.Frames) != 1 || v.Frames[0].Host != places[i].Host || v.Frames[0].Dev != "wire" || v.Frames[0].Out != out || !v.Traced {
			t.Errorf("%s saw %v, rules %t", v.Host, v.Frames, v.Traced)
		}
	}
	if v := r.Views[0]; len(v.Drops)+len(v.Hits) > 0 {
		t.Errorf("the sender drops %v, and its rules are %+v", v.Drops, v.Hits)
	}
	v := r.Views[1]
	if len(v.Drops) != 1 || v.Drops[0].Host != v.Host || v.Drops[0].Reason != "NETFILTER_DROP" {
		t.Errorf("the receiver drops %+v", v.Drops)
	}
	if len(v.Hits) != 1 || v.Hits[0].Host != v.Host || !v.Hits[0].Stops || v.Hits[0].Object.Kind != locate.Rule {
		t.Errorf("the receiver's rules are %+v", v.Hits)
	}
}

// TestUnwatched: what the trace of rules cannot see is said: here legacy tables, whose programs are not installed.
func TestUnwatched(t *testing.T) {
	hosts, places := pair(t)
	run(t, hosts[0], "iptables-legacy -A FORWARD -j ACCEPT")
	t.Setenv("PATH", t.TempDir())
	r, err := watch.While(watch.Options{Places: places[:1], Rules: []ruletrace.Pair{{A: near, B: far}}}, func() error { return nil })
	want := hosts[0].Name + `: some of the rules that packets meet: read the legacy tables ["filter"]: there is no legacy variant of iptables`
	if err != nil || !slices.Equal(r.Unread, []string{want}) {
		t.Errorf("got  %q, %v\nwant %q", r.Unread, err, want)
	}
}

// TestHarmless: an echo reply that no ping socket waits for is no loss, but for one that is still on its way between nodes.
func TestHarmless(t *testing.T) {
	reply := "450000240000400040010000" + "0af40102" + "0af40202" + "00000000" + "12340001" + "0000000000000000"
	wrapped := "45000056000000004011" + "0000" + "c0000201" + "c0000202" + "89d9211800420000" + "0800000000000100" +
		"0a00000000020a00000000010800" + reply
	for text, want := range map[string]bool{reply: true, wrapped: false, strings.Replace(reply, "00000000"+"12340001", "08000000"+"12340001", 1): false} {
		data, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if d := (drops.Drop{Reason: "NO_SOCKET", Packet: data}); watch.IsHarmless(d) != want {
			t.Errorf("%s: harmless %t, want %t", packet.DecodeStart(data), !want, want)
		}
	}
}
