package wireguard

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/secret"
	"github.com/twill-net/twill/subnet"
)

// TestSecrets: the kernel gets the private key for this node's public one alone, and the key that nodes share for its
// fingerprint.
func TestSecrets(t *testing.T) {
	b := newBackend(t, `{"PSK":"`+key(9)+`"}`)
	var none netstate.PublicKey
	if _, ok := b.Private(none); ok {
		t.Error("there is a private key before Prepare")
	}
	if err := b.Prepare(t.Context(), backend.Env{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	public := netstate.PublicKey(b.private().PublicKey())
	if got, ok := b.Private(public); !ok || got != b.private() {
		t.Errorf("the private key is %v, %t", got != [32]byte{}, ok)
	}
	if _, ok := b.Private(none); ok {
		t.Error("the private key of another node is known")
	}
	shared := wgtypes.Key{9, 1}
	if got, ok := b.Shared(secret.Fingerprint(shared)); !ok || got != shared {
		t.Errorf("the shared key is known: %t", ok)
	}
	if _, ok := b.Shared("other"); ok {
		t.Error("another shared key is known")
	}
	node := bothFamilies(1)
	node.WireGuard = true
	state, _ := b.Desired(node, subnet.Snapshot{Local: lease(1, published(1))})
	listener := netstate.Listener{Dev: device4, Port: 51820, Public: public}
	if got := state[listener.Key()]; got != listener {
		t.Errorf("got %v, want the key that was read: %v", got, listener)
	}
}

// TestMTUs: a device of one family has its underlay's, one for both the smaller one, and an option counts before both.
func TestMTUs(t *testing.T) {
	node := bothFamilies(1)
	node.Underlays[0].MTU, node.Underlays[1].MTU = 9000, 1500
	for options, want := range map[string][3]int{
		`{}`: {8920, 1420, 1420}, `{"Mode":"auto"}`: {1420, 1420, 1420}, `{"MTU":1400}`: {1320, 1320, 1320},
	} {
		b := newBackend(t, options)
		got := [3]int{b.deviceMTU(node, netstate.IPv4), b.deviceMTU(node, netstate.IPv6), b.MTU(node)}
		if got != want {
			t.Errorf("%s: got %v, want %v", options, got, want)
		}
	}
	node.Underlays = node.Underlays[:1]
	if got := newBackend(t, `{}`).deviceMTU(node, netstate.IPv6); got != 8920 {
		t.Errorf("without an underlay of its family a device has %d, want 8920", got)
	}
}

// TestOneFamily: a node without an underlay of a family has no device, route or peer of it.
func TestOneFamily(t *testing.T) {
	node := bothFamilies(1)
	node.Underlays, node.WireGuard = node.Underlays[:1], true
	state, skips := newBackend(t, `{}`).Desired(node, subnet.Snapshot{Local: lease(1, published(1)),
		Peers: []subnet.Lease{lease(2, published(2))}})
	var kinds []netstate.Kind
	for _, o := range state.Sorted() {
		kinds = append(kinds, o.Key().Kind)
	}
	want := []netstate.Kind{netstate.KindLink, netstate.KindSysctl, netstate.KindAddr, netstate.KindListener,
		netstate.KindPeer, netstate.KindRoute}
	if len(skips) > 0 || !slices.Equal(kinds, want) {
		t.Errorf("skips %v, got\n%s", skips, state)
	}
}

// TestCodes: programs are told by codes what is wrong with a peer.
func TestCodes(t *testing.T) {
	_, skips := newBackend(t, `{"Mode":"auto"}`).Desired(bothFamilies(1), subnet.Snapshot{Local: lease(1, published(1)),
		Peers: []subnet.Lease{lease(2, `{}`), lease(3, published(1))}})
	codes := map[string]subnet.Code{}
	for _, s := range skips {
		codes[s.Node] = s.Code
	}
	if len(skips) != 4 || codes["n2"] != subnet.BackendData || codes["n3"] != subnet.DuplicateKey {
		t.Errorf("got %v", skips)
	}
}

// TestClaimOfNothing: what cannot be read is claimed by nobody, and a key is claimed for its device.
func TestClaimOfNothing(t *testing.T) {
	b := newBackend(t, `{}`)
	for _, raw := range []string{``, `{}`, `{"PublicKey":"` + key(2) + `","Port":-1}`,
		`{"PublicKey":"` + key(2) + `","Port":65536}`} {
		if got := b.Claims(subnet.Stack{Data: json.RawMessage(raw)}); len(got) > 0 {
			t.Errorf("%s: claims %q", raw, got)
		}
	}
	if got := b.Claims(lease(2, published(2)).Stacks[1]); !slices.Equal(got, []string{device6 + " " + key(2)}) {
		t.Errorf("claims %q", got)
	}
	if _, port, err := parseData([]byte(`{"PublicKey":"` + key(2) + `","Port":65535}`)); err != nil || port != 65535 {
		t.Errorf("port %d, %v", port, err)
	}
}

// TestPortsOfOneNetwork: one device needs one port; a peer that says port 0 has this node's.
func TestPortsOfOneNetwork(t *testing.T) {
	if _, _, err := New(networks[:1], []byte(`{"ListenPort":9,"ListenPortV6":9}`)); err != nil {
		t.Errorf("one network: %v", err)
	}
	for _, want := range []int{0, 1} {
		raw := fmt.Sprintf(`{"PublicKey":"%s","Port":%d}`, key(2), want)
		if _, port, err := parseData([]byte(raw)); err != nil || port != want {
			t.Errorf("%s: port %d, %v", raw, port, err)
		}
	}
}

// TestChoose: with auto a peer's public address counts, of both the IPv4 one.
func TestChoose(t *testing.T) {
	end := func(s string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(s), 51820) }
	public, private := bothFamilies(1), bothFamilies(1)
	private.Underlays[1].Local = netip.MustParseAddr("fd00::1")
	for _, test := range []struct {
		mode string
		node backend.Node
		ends []string
		want string
	}{
		{auto, public, []string{"192.0.2.2", "2001:db8::2"}, "192.0.2.2"},
		{auto, public, []string{"10.0.0.2", "2001:db8::2"}, "2001:db8::2"},
		{auto, private, []string{"10.0.0.2", "2001:db8::2"}, "10.0.0.2"},
		{auto, public, []string{"10.0.0.2", "fd00::2"}, "10.0.0.2"},
		{auto, private, []string{"10.0.0.2", "192.0.2.2"}, "192.0.2.2"},
		{auto, backend.Node{Underlays: public.Underlays[:1]}, []string{"10.0.0.2", "2001:db8::2"}, "10.0.0.2"},
		{ipv6, public, []string{"192.0.2.2", "2001:db8::2"}, "2001:db8::2"},
		{ipv4, public, []string{"2001:db8::2", "192.0.2.2"}, "192.0.2.2"},
		{ipv4, public, []string{"2001:db8::2"}, "2001:db8::2"},
		{separate, public, []string{"2001:db8::2", "192.0.2.2"}, "2001:db8::2"},
	} {
		var ends []netip.AddrPort
		for _, s := range test.ends {
			ends = append(ends, end(s))
		}
		b := newBackend(t, `{"Mode":"`+test.mode+`"}`)
		if got := b.choose(test.node, ends); got != end(test.want) {
			t.Errorf("%s, of %v: %s, want %s", test.mode, ends, got, test.want)
		}
	}
}

// TestKeyErrors: a key that cannot be read or kept is an error, and leaves no file.
func TestKeyErrors(t *testing.T) {
	dir := t.TempDir()
	env := backend.Env{Dir: filepath.Join(dir, "missing"), Log: slog.New(slog.DiscardHandler)}
	b := newBackend(t, `{}`)
	if err := b.Prepare(t.Context(), env); !errors.Is(err, os.ErrNotExist) || b.private() != (wgtypes.Key{}) {
		t.Errorf("without the directory: %v", err)
	}
	path := filepath.Join(dir, "wgkey")
	if err := os.MkdirAll(filepath.Join(path, "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := b.Prepare(t.Context(), backend.Env{Dir: dir, Log: env.Log}); err == nil || b.private() != (wgtypes.Key{}) {
		t.Errorf("a directory in the key's place: %v", err)
	}
	if _, err := makeKey(path); err == nil {
		t.Error("a key took a directory's place")
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".wgkey-*")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestBindErrors: what a closed bind cannot do is an error, and it can be opened again.
func TestBindErrors(t *testing.T) {
	var b bind
	to, err := b.ParseEndpoint("[::ffff:192.0.2.1]:7")
	if err != nil || to.DstToString() != "192.0.2.1:7" {
		t.Fatalf("endpoint %v, %v", to, err)
	}
	if _, err := b.ParseEndpoint("192.0.2.1"); err == nil {
		t.Error("an endpoint without a port")
	}
	if err := b.Send([][]byte{{1}}, to); err == nil {
		t.Error("sent by a bind that was never opened")
	}
	if err := b.Send([][]byte{{1}}, conn.Endpoint(nil)); !errors.Is(err, conn.ErrWrongEndpointType) {
		t.Errorf("an endpoint of another bind: %v", err)
	}
	m := newMachine(t, 1, "")
	m.Command("ip link set lo up")
	for range 2 {
		in(m, func() { openTwice(t, &b) })
	}
}

// openTwice opens b, which is closed, and tries what only one can do.
func openTwice(t *testing.T, b *bind) {
	_, port, err := b.Open(0)
	if err != nil || port == 0 {
		t.Errorf("port %d, %v", port, err)
	}
	if _, _, err := b.Open(0); !errors.Is(err, conn.ErrBindAlreadyOpen) {
		t.Errorf("opened twice: %v", err)
	}
	var other bind
	if _, _, err := other.Open(port); err == nil {
		t.Error("a port that is taken was opened")
	}
	if _, _, err := other.Open(0); err != nil {
		t.Errorf("after a port that was taken: %v", err)
	}
	here, err := b.ParseEndpoint("127.0.0.1:9")
	if err := errors.Join(err, other.Close(), b.SetMark(7), b.Send([][]byte{{1}}, here)); err != nil {
		t.Error(err)
	}
	nowhere, err := b.ParseEndpoint("198.51.100.1:9")
	err = errors.Join(err, b.Send([][]byte{{1}}, nowhere))
	if err == nil || !strings.Contains(err.Error(), "198.51.100.1:9") {
		t.Errorf("sent to where no route leads: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
