package enforce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nflog"
	"github.com/twill-net/twill/policy"
)

// fakeDenials tells of some packets, and then ends with an error.
type fakeDenials struct {
	packets []nflog.Packet
	after   func() // is called after each packet; nil: nothing is
	end     error
}

func (d fakeDenials) Each(_ context.Context, do func(nflog.Packet)) error {
	for _, p := range d.packets {
		do(p)
		if d.after != nil {
			d.after()
		}
	}
	return d.end
}

// ip4 is the beginning of an IPv4 packet to a port.
func ip4(from, to netip.Addr, protocol byte, port uint16) []byte {
	b := make([]byte, 40)
	b[0], b[9] = 0x45, protocol
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	binary.BigEndian.PutUint16(b[20:], 40000)
	binary.BigEndian.PutUint16(b[22:], port)
	return b
}

// ip6 is the beginning of an IPv6 packet.
func ip6(from, to netip.Addr, protocol byte, content ...byte) []byte {
	b := make([]byte, 48)
	b[0], b[6] = 0x60, protocol
	copy(b[8:], from.AsSlice())
	copy(b[24:], to.AsSlice())
	copy(b[40:], content)
	return b
}

// isolating returns the name of an ingress chain that is made of policies.
func (r *run) isolating(f netstate.Family) (name, policies string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, c := range r.chains {
		if c.Family == f && c.Direction == policy.Ingress && c.Policies != "" {
			return key.Name, c.Policies
		}
	}
	r.Fatal("no policy isolates")
	return "", ""
}

// take returns the lines that were logged since the last call, without their times.
func (r *run) take() (lines []string) {
	synctest.Wait()
	for line := range strings.Lines(r.log.String()) {
		_, line, _ = strings.Cut(strings.TrimSpace(line), " ")
		lines = append(lines, line)
	}
	r.log.Reset()
	return lines
}

// TestLogDenied: a line has the packet's addresses, ports and protocol, and what is known of pods and policies.
func TestLogDenied(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		r.take()
		pod, outside := r.snap.Pods[0], netip.MustParseAddr("192.0.2.1")
		four, policies4 := r.isolating(netstate.IPv4)
		six, policies6 := r.isolating(netstate.IPv6)
		const deny = `level=INFO msg="network policies deny a packet" `
		const toPod, ping = "from=192.0.2.1:40000 to=10.244.1.2:80 ", "from=fd00:10:244:1::2 to=fd00:10:244:1::2 "
		name := " destination=" + pod.String()
		names := " source=" + pod.String() + name
		for _, c := range []struct {
			packet nflog.Packet
			want   string
		}{
			{nflog.Packet{Family: netstate.IPv4, Prefix: four, Data: ip4(outside, pod.Addrs[0], 6, 80)},
				deny + toPod + "protocol=TCP direction=ingress policies=" + policies4 + name},
			{nflog.Packet{Family: netstate.IPv4, Prefix: four, Data: ip4(outside, pod.Addrs[0], 132, 80)},
				deny + toPod + "protocol=SCTP direction=ingress policies=" + policies4 + name},
			{nflog.Packet{Family: netstate.IPv6, Prefix: six, Data: ip6(pod.Addrs[1], pod.Addrs[1], 58, 128)},
				deny + ping + `protocol=ICMPv6 type="echo request" direction=ingress policies=` + policies6 + names},
			{nflog.Packet{Family: netstate.IPv6, Prefix: "in-gone", Data: ip6(pod.Addrs[1], pod.Addrs[1], 44)},
				deny + ping + "protocol=44 chain=in-gone" + names},
			{nflog.Packet{Family: netstate.IPv4, Prefix: "egress", Data: ip4(netip.MustParseAddr("10.244.1.77"), outside, 17, 53)},
				`level=INFO msg="a packet is dropped because no pod is known to have its address" ` +
					"from=10.244.1.77:40000 to=192.0.2.1:53 protocol=UDP direction=egress"},
			{nflog.Packet{Family: netstate.Ethernet, Prefix: "frames", In: 1 << 30, Data: []byte{1, 2, 3}},
				`level=INFO msg="a pod's frame is dropped: it may not send from this address, or none of this kind" ` +
					"from=unknown to=unknown protocol=unknown device=1073741824 direction=egress"},
		} {
			if err := r.LogDenied(t.Context(), fakeDenials{packets: []nflog.Packet{c.packet}}); err != nil {
				t.Fatal(err)
			}
			if got := r.take(); len(got) != 1 || got[0] != c.want {
				t.Errorf("%+v:\ngot  %q\nwant %q", c.packet, got, c.want)
			}
		}
		_ = r.LogDenied(t.Context(), fakeDenials{end: errors.New("read from NFLOG: broken")})
		if got := r.take(); len(got) != 1 || !strings.Contains(got[0], `not logged any more" err="read from NFLOG: broken"`) {
			t.Errorf("when NFLOG breaks: %q", got)
		}
	})
}

// TestLogFlood: what goes on is few lines, whatever source ports it has, and so are a thousand different denials in a
// second.
func TestLogFlood(t *testing.T) {
	test(t, &fakeKernel{}, func(r *run) {
		r.protect()
		r.sync()
		r.take()
		from, to := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.244.1.2")
		one := nflog.Packet{Family: netstate.IPv4, Prefix: "in-1", Data: ip4(from, to, 6, 80)}
		flood := fakeDenials{after: func() { time.Sleep(100 * time.Millisecond) }}
		for i := range 600 {
			other := one
			other.Data = ip4(from, to, 6, 80)
			binary.BigEndian.PutUint16(other.Data[20:], uint16(i))
			flood.packets = append(flood.packets, other)
		}
		_ = r.LogDenied(t.Context(), flood)
		if got := r.take(); len(got) > 4 || len(got) < 3 || !strings.HasSuffix(got[1], " times=101") {
			t.Errorf("a minute of one denial is\n%s", strings.Join(got, "\n"))
		}
		scan := fakeDenials{after: func() { time.Sleep(time.Millisecond) }}
		for i := range 1000 {
			scan.packets = append(scan.packets,
				nflog.Packet{Family: netstate.IPv4, Prefix: "in-1", Data: ip4(from, to, 17, uint16(i))})
		}
		_ = r.LogDenied(t.Context(), scan)
		if got := r.take(); len(got) < denialsAtOnce || len(got) > denialsAtOnce+denialsPerSecond+2 ||
			!strings.Contains(fmt.Sprint(got), "more packets are dropped than are logged") {
			t.Errorf("a scan of a thousand ports is %d lines:\n%s", len(got), strings.Join(got, "\n"))
		}
		time.Sleep(2 * time.Minute)
		if got := r.take(); len(got) != 2 || !strings.Contains(got[0]+got[1], "times=600") {
			t.Errorf("when all is over:\n%s", strings.Join(got, "\n"))
		}
	})
}

// TestLogRules: the rules that log are there if that is asked for, and one plan takes them away when it is not any more.
func TestLogRules(t *testing.T) {
	kernel := &fakeKernel{}
	start := func(logs bool) {
		test(t, kernel, func(r *run) {
			r.Logs = logs
			r.protect()
			r.sync()
			if got := strings.Contains(kernel.state.String(), "log in-"); got != logs {
				t.Errorf("rules log: %v, want %v", got, logs)
			}
		})
	}
	start(true)
	kernel.plans = nil
	if start(false); len(kernel.plans) != 1 {
		t.Errorf("%d plans without the log, want one:\n%s", len(kernel.plans), kernel.plans)
	}
	kernel.plans = nil
	if start(false); len(kernel.plans) != 0 {
		t.Errorf("nothing has changed, and this is written:\n%s", kernel.plans)
	}
}

// FuzzDecode: whatever a packet is, there is something to say of it.
func FuzzDecode(f *testing.F) {
	f.Add(ip4(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.244.1.2"), 6, 80))
	f.Add(ip6(netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), 58, 128))
	f.Add([]byte{0, 1, 8, 0, 6, 4, 0, 2, 27: 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		d := decode(data)
		if d.protocol == "" || len(d.args()) < 6 || d.end(d.from, d.fromPort) == "" {
			t.Errorf("% x: %+v", data, d)
		}
	})
}
