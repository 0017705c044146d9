package wireguard

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	wgtun "golang.zx2c4.com/wireguard/tun"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/tun"
	"github.com/twill-net/twill/netstate"
)

// Run is WireGuard on this node's TUN devices until ctx is done. Where the kernel has WireGuard it has nothing to do.
func (b *Backend) Run(ctx context.Context, env backend.Env, views <-chan backend.Input) error {
	tunnels, said := map[string]*tunnel{}, false
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
			if view.Node.WireGuard {
				if !said {
					env.Log.Info("the kernel's WireGuard moves the packets")
				}
				said = true
				continue
			}
			if err := b.follow(env, view, tunnels); err != nil {
				return err
			}
		}
	}
}

// follow opens a tunnel on each device that has none, and brings all to the view's peers.
func (b *Backend) follow(env backend.Env, view backend.Input, tunnels map[string]*tunnel) error {
	if b.private() == (wgtypes.Key{}) {
		return errors.New("the private key has not been read yet")
	}
	for _, s := range view.Snapshot.Local.Stacks {
		dev := b.deviceOf(s.Family())
		if tunnels[dev] != nil {
			continue
		}
		t, err := b.open(env, dev, b.port(s.Family()))
		if err != nil {
			return err
		}
		tunnels[dev] = t
	}
	peers, _ := b.peers(view.Node, view.Snapshot)
	ends := map[string][]netstate.Peer{}
	for _, end := range b.ends(view.Node, peers) {
		ends[end.Dev] = append(ends[end.Dev], end)
	}
	for dev, t := range tunnels {
		if err := t.sync(ends[dev]); err != nil {
			return err
		}
	}
	return nil
}

// tunnel is WireGuard on one device.
type tunnel struct {
	dev    wgtun.Device
	wg     *device.Device
	public wgtypes.Key
	peers  map[netstate.Key]netstate.Peer
	psk    string
}

func (b *Backend) open(env backend.Env, name string, port int) (*tunnel, error) {
	dev, err := tun.Open(name)
	if err != nil {
		return nil, err
	}
	log := &device.Logger{Verbosef: device.DiscardLogf, Errorf: func(format string, args ...any) {
		env.Log.Error("WireGuard", "dev", name, "err", fmt.Errorf(format, args...))
	}}
	key := b.private()
	t := &tunnel{dev: dev, wg: device.NewDevice(dev, &bind{}, log), public: key.PublicKey()}
	if b.psk != (wgtypes.Key{}) {
		t.psk = hex.EncodeToString(b.psk[:])
	}
	err = t.wg.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\n", hex.EncodeToString(key[:]), port))
	if err == nil {
		err = t.wg.Up()
	}
	if err != nil {
		t.wg.Close()
		return nil, fmt.Errorf("start WireGuard on %s, UDP port %d: %w", name, port, err)
	}
	env.Log.Info("this kernel has no WireGuard, the agent moves the packets itself", "dev", name, "port", port)
	return t, nil
}

// sync tells WireGuard what is new: a peer that stays keeps its session.
func (t *tunnel) sync(ends []netstate.Peer) error {
	if err := tun.Alive(t.dev); err != nil {
		return fmt.Errorf("the device was deleted: %w", err)
	}
	want := map[netstate.Key]netstate.Peer{}
	for _, end := range ends {
		want[end.Key()] = end
	}
	var b strings.Builder
	for key, p := range t.peers {
		if _, ok := want[key]; !ok {
			fmt.Fprintf(&b, "public_key=%s\nremove=true\n", hex.EncodeToString(p.Public[:]))
		}
	}
	for key, p := range want {
		if t.peers[key] != p {
			t.describe(&b, p)
		}
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

// describe is a peer in the words of WireGuard's configuration protocol.
func (t *tunnel) describe(b *strings.Builder, p netstate.Peer) {
	fmt.Fprintf(
		b,
		"public_key=%s\nendpoint=%s\nreplace_allowed_ips=true\n",
		hex.EncodeToString(p.Public[:]),
		p.Endpoint,
	)
	for _, allowed := range p.Allowed {
		if allowed.IsValid() {
			fmt.Fprintf(b, "allowed_ip=%s\n", allowed)
		}
	}
	if t.psk != "" {
		fmt.Fprintf(b, "preshared_key=%s\n", t.psk)
	}
	fmt.Fprintf(b, "persistent_keepalive_interval=%d\n", p.Keepalive)
}

// courtesy is how long the node with the greater public key leaves the greeting to the other.
const courtesy = 500 * time.Millisecond

// greet begins a session with each new peer. One that had a session with this node before would otherwise go on sending
// with its keys, which are unknown here, for up to 15 s. Of two nodes that learn of each other at the same time one
// begins: where two handshakes cross, WireGuard drops the answers to both, and tries again after 5 s.
func (t *tunnel) greet(want map[netstate.Key]netstate.Peer) {
	for key, w := range want {
		if t.peers[key] == w {
			continue
		}
		greet := func() {
			if p := t.wg.LookupPeer(device.NoisePublicKey(w.Public)); p != nil {
				p.SendKeepalive()
			}
		}
		if bytes.Compare(t.public[:], w.Public[:]) < 0 {
			greet()
		} else {
			time.AfterFunc(courtesy, greet)
		}
	}
}
