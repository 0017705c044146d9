package wireguard

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	wgtun "golang.zx2c4.com/wireguard/tun"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/tun"
	"github.com/twill-net/twill/subnet"
)

// Run is WireGuard on this node's devices until ctx is done.
func (b *Backend) Run(ctx context.Context, site backend.Site, views <-chan backend.View) error {
	var tunnels []*tunnel
	defer func() {
		for _, t := range tunnels {
			t.wg.Close()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case view := <-views:
			opened, err := b.follow(site, view.Snapshot, tunnels)
			tunnels = opened
			if err != nil {
				return err
			}
		}
	}
}

// follow opens a tunnel for each address family that has none, and brings all to the snapshot's peers.
func (b *Backend) follow(site backend.Site, snap subnet.Snapshot, tunnels []*tunnel) ([]*tunnel, error) {
	if b.private() == (wgtypes.Key{}) {
		return tunnels, errors.New("the private key has not been read yet")
	}
	for _, s := range snap.Local.Stacks[len(tunnels):] { // there are no more families than at the start
		t, err := b.open(site, s.Is4())
		if err != nil {
			return tunnels, err
		}
		tunnels = append(tunnels, t)
	}
	peers, _ := b.peers(snap)
	for _, t := range tunnels {
		if err := t.sync(peers); err != nil {
			return tunnels, err
		}
	}
	return tunnels, nil
}

// tunnel is WireGuard on one device.
type tunnel struct {
	is4   bool
	dev   wgtun.Device
	wg    *device.Device
	peers map[wgtypes.Key]target
	psk   string
	alive int // seconds
}

// target is what a tunnel knows of a peer.
type target struct {
	end    netip.AddrPort
	subnet netip.Prefix
}

func (b *Backend) open(site backend.Site, is4 bool) (*tunnel, error) {
	name := deviceOf(is4)
	dev, err := tun.Open(name)
	if err != nil {
		return nil, err
	}
	log := &device.Logger{Verbosef: device.DiscardLogf, Errorf: func(format string, args ...any) {
		site.Say("WireGuard", fmt.Errorf(format, args...), "dev", name)
	}}
	t := &tunnel{is4: is4, dev: dev, wg: device.NewDevice(dev, conn.NewStdNetBind(), log), peers: map[wgtypes.Key]target{},
		alive: b.options.PersistentKeepaliveInterval}
	if psk, err := wgtypes.ParseKey(b.options.PSK); err == nil && b.options.PSK != "" {
		t.psk = hex.EncodeToString(psk[:])
	}
	key := b.private()
	err = t.wg.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\n", hex.EncodeToString(key[:]), b.port(is4)))
	if err == nil {
		err = t.wg.Up()
	}
	if err != nil {
		t.wg.Close()
		return nil, fmt.Errorf("start WireGuard on %s, UDP port %d: %w", name, b.port(is4), err)
	}
	site.Say("moving packets", nil, "dev", name, "port", b.port(is4))
	return t, nil
}

// sync tells WireGuard what is new: a peer that stays keeps its session.
func (t *tunnel) sync(peers []peer) error {
	if err := tun.Alive(t.dev); err != nil {
		return fmt.Errorf("the device was deleted: %w", err)
	}
	want := map[wgtypes.Key]target{}
	for _, p := range peers {
		if p.Is4() == t.is4 {
			want[p.key] = target{netip.AddrPortFrom(p.Underlay, uint16(p.port)), p.Subnet}
		}
	}
	var b strings.Builder
	for key := range t.peers {
		if _, ok := want[key]; !ok {
			fmt.Fprintf(&b, "public_key=%s\nremove=true\n", hex.EncodeToString(key[:]))
		}
	}
	for key, w := range want {
		if t.peers[key] == w {
			continue
		}
		fmt.Fprintf(&b, "public_key=%s\nendpoint=%s\nreplace_allowed_ips=true\nallowed_ip=%s\n", hex.EncodeToString(key[:]), w.end, w.subnet)
		if t.psk != "" {
			fmt.Fprintf(&b, "preshared_key=%s\n", t.psk)
		}
		fmt.Fprintf(&b, "persistent_keepalive_interval=%d\n", t.alive)
	}
	if b.Len() == 0 {
		return nil
	}
	if err := t.wg.IpcSet(b.String()); err != nil {
		return fmt.Errorf("set the peers of WireGuard: %w", err)
	}
	t.greet(want)
	t.peers = want
	return nil
}

// greet begins a session with each new peer. One that had a session with this node before would otherwise go on sending
// with its keys, which are unknown here, for up to 15 s.
func (t *tunnel) greet(want map[wgtypes.Key]target) {
	for key, w := range want {
		if p := t.wg.LookupPeer(device.NoisePublicKey(key)); p != nil && t.peers[key] != w {
			p.SendKeepalive()
		}
	}
}
