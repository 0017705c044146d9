package nflog

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testns"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// rules log what goes to port 9.
const rules = `
table ip test {
	chain output {
		type filter hook output priority 0
		udp dport 9 log prefix "four" group 7
	}
}
table ip6 test {
	chain output {
		type filter hook output priority 0
		udp dport 9 log prefix "six" group 7 drop
	}
}`

// inNamespace gives the test's thread a network namespace of its own, which ends with it.
func inNamespace(t *testing.T) {
	t.Helper()
	for _, program := range []string{"nft", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	testns.Enter(t, "ip link set lo up")
}

func run(t *testing.T, stdin string, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

func send(t *testing.T, to, text string) {
	t.Helper()
	conn, err := net.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(text)) // a rule that drops it is an error
}

// TestEach: packets of both families are heard at once, with the rule's prefix and their beginning; other packets are not.
func TestEach(t *testing.T) {
	inNamespace(t)
	l, err := Open(7)
	if err != nil {
		t.Fatal(err)
	}
	run(t, rules, "nft", "-f", "-")
	for _, to := range []string{"127.0.0.1:8", "127.0.0.1:9", "[::1]:9"} {
		send(t, to, strings.Repeat("x", 300))
	}
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	var got []Packet
	err = l.Each(ctx, func(p Packet) {
		if got = append(got, p); len(got) == 2 {
			cancel()
		}
	})
	if err != nil || len(got) != 2 {
		t.Fatalf("got %+v, %v: want two packets", got, err)
	}
	for i, want := range []Packet{
		{Family: netstate.IPv4, Prefix: "four", Data: []byte{127, 0, 0, 1}}, {Family: netstate.IPv6, Prefix: "six", Data: net.IPv6loopback},
	} {
		if p := got[i]; p.Family != want.Family || p.Prefix != want.Prefix || len(p.Data) != most || !bytes.Contains(p.Data, want.Data) {
			t.Errorf("got %+v, want %+v", p, want)
		}
	}
}

// TestSecond: a group that has a listener is refused with a sentence, and free when that is gone.
func TestSecond(t *testing.T) {
	inNamespace(t)
	l, err := Open(7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(7); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "another process listens to the NFLOG group 7") {
		t.Errorf("a second listener: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = Open(7); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := l.Each(t.Context(), func(Packet) {}); err == nil {
		t.Error("a log that is closed is read without an error")
	}
}

// FuzzParse: no message is too strange, and what is read of it has a family.
func FuzzParse(f *testing.F) {
	f.Add([]byte{unix.NFPROTO_BRIDGE, 0, 0, 7, 8, 0, 4, 0, 0, 0, 0, 3, 6, 0, 10, 0, 'x', 0, 0, 0, 5, 0, 9, 0, 0x45})
	f.Add([]byte{unix.NFPROTO_IPV4, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		p, ok := parse(netlink.Message{Header: netlink.Header{Type: unix.NFNL_SUBSYS_ULOG << 8}, Data: data})
		if ok && p.Family == 0 {
			t.Errorf("% x: %+v", data, p)
		}
	})
}
