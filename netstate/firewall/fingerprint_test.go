package firewall

import (
	"encoding/binary"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// TestFingerprint: it changes with each alteration of a legacy table, of either family, and not with counters.
func TestFingerprint(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	useVariant(t, legacy)
	read := func() uint64 {
		t.Helper()
		print, err := fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		return print
	}
	last := read()
	for _, command := range []string{
		"iptables-legacy -A FORWARD -s 10.0.0.1 -j DROP", "ip6tables-legacy -A FORWARD -s fc00::1 -j DROP",
		"iptables-legacy -R FORWARD 1 -s 10.0.0.2 -j DROP", "ip6tables-legacy -R FORWARD 1 -s fc00::2 -j DROP",
		"iptables-legacy -N OTHER", "iptables-legacy -E OTHER ANOTHER", "iptables-legacy -P FORWARD DROP",
		"iptables-legacy -t mangle -A PREROUTING -m comment --comment x -j MARK --set-mark 7",
		"iptables-legacy -t mangle -F", "ip6tables-legacy -t nat -A POSTROUTING -j MASQUERADE",
	} {
		sh(t, command)
		now := read()
		if now == last {
			t.Errorf("%s: the fingerprint is as it was", command)
		}
		last = now
	}
	sh(t, "iptables-legacy -I INPUT 1 -i lo; ip6tables-legacy -I INPUT 1 -i lo; iptables-legacy -A INPUT -s 127.0.0.3")
	last = read()
	sh(t, "ip link set lo up; ping -c 1 127.0.0.1; ping -c 1 ::1")
	if counted := sh(t, "iptables-legacy -nvxL INPUT 1"); len(counted) < 8 || counted[:8] == "       0" {
		t.Fatalf("the first rule counted no packets: %s", counted)
	}
	if read() != last {
		t.Error("packets changed the fingerprint")
	}
}

// TestClear: entries that are cut off or have a wrong length end the reading, and nothing else is touched.
func TestClear(t *testing.T) {
	l := legacyLayouts[netstate.IPv4]
	entry := func(length int) []byte {
		data := make([]byte, l.counters+countersSize)
		for i := range data {
			data[i] = 0xff
		}
		binary.NativeEndian.PutUint16(data[l.length:], uint16(length))
		return data
	}
	size := l.counters + countersSize
	for _, c := range []struct{ length, cleared int }{{0, 1}, {size, 2}, {3 * size, 1}} {
		data := append(entry(c.length), entry(0)...)
		l.clear(data)
		cleared := 0
		for i := l.counters; i < len(data); i += size {
			if binary.NativeEndian.Uint64(data[i:]) == 0 {
				cleared++
			}
		}
		if cleared != c.cleared {
			t.Errorf("length %d: the counters of %d entries are 0, want %d", c.length, cleared, c.cleared)
		}
		if data[0] != 0xff || data[l.counters-1] != 0xff {
			t.Errorf("length %d: more than the counters was touched", c.length)
		}
	}
	l.clear(make([]byte, 3))
}
