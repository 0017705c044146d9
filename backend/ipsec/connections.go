package ipsec

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/strongswan/govici/vici"

	"github.com/twill-net/twill/backend"
)

// connection is what charon is told of one peer. Its name says all of it that can differ, as flannel's does,
// so the names that charon lists are enough to compare by.
type connection struct {
	here, there netip.Addr
	public      netip.Addr // by which this node calls itself
	own, peer   netip.Prefix
}

func (c connection) name() string {
	return fmt.Sprintf("%s-%s-%s-%s", c.here, c.own, c.peer, c.there)
}

func (c connection) child() string { return fmt.Sprintf("%s-%s", c.own, c.peer) }

// connections are those that a view asks for, by name.
func (b Backend) connections(view backend.Input) map[string]connection {
	all := map[string]connection{}
	peers, _ := backend.Peers(b.networks, view.Node, view.Snapshot)
	for _, p := range peers {
		u, ok := view.Node.Underlay(p.Family())
		own, leased := view.Snapshot.Local.Stack(p.Family())
		if ok && leased {
			c := connection{u.Local, p.Underlay, u.Public, own.Subnet, p.Subnet}
			all[c.name()] = c
		}
	}
	return all
}

// The messages of charon's vici protocol (src/libcharon/plugins/vici/README.md of strongSwan).
type (
	ikeConf struct {
		LocalAddrs  []string             `vici:"local_addrs"`
		RemoteAddrs []string             `vici:"remote_addrs"`
		Proposals   []string             `vici:"proposals"`
		Version     string               `vici:"version"`
		KeyingTries string               `vici:"keyingtries"`
		DPDDelay    string               `vici:"dpd_delay"`
		Encap       string               `vici:"encap"`
		MOBIKE      string               `vici:"mobike"` // a node's other addresses are no ways to it
		Unique      string               `vici:"unique"`
		Local       auth                 `vici:"local"`
		Remote      auth                 `vici:"remote"`
		Children    map[string]childConf `vici:"children"`
	}
	auth struct {
		Auth string `vici:"auth"`
		ID   string `vici:"id"`
	}
	childConf struct {
		LocalTS      []string `vici:"local_ts"`
		RemoteTS     []string `vici:"remote_ts"`
		ESPProposals []string `vici:"esp_proposals"`
		StartAction  string   `vici:"start_action"`
		CloseAction  string   `vici:"close_action"`
		DPDAction    string   `vici:"dpd_action"`
		Mode         string   `vici:"mode"`
		ReqID        string   `vici:"reqid"`
		RekeyTime    string   `vici:"rekey_time"`
		Policies     string   `vici:"policies"` // the reconciler's
	}
	sharedKey struct {
		ID   string `vici:"id"`
		Type string `vici:"type"`
		Data string `vici:"data"`
	}
)

// proposals are for the key exchange, the best first. The second is flannel's; the first is as strong and
// costs much less processor time, which a node that starts needs twice for each of its peers.
var proposals = []string{"aes256-sha256-ecp384", "aes256-sha256-modp4096"}

// conf is flannel's, but for two things. A peer that is gone is noticed, and called again by revive. And no
// side forgets a tunnel because the other asks for one as if for the first time (unique): when two nodes
// begin at once, each would forget the one that the other goes on using, and nothing would pass for three
// minutes. Of two tunnels the kernel uses the younger one.
func (b Backend) conf(c connection) ikeConf {
	encap := "no"
	if b.options.UDPEncap {
		encap = "yes"
	}
	return ikeConf{
		LocalAddrs:  []string{c.here.String()},
		RemoteAddrs: []string{c.there.String()},
		Proposals:   proposals,
		Version:     "2",
		KeyingTries: "0",
		DPDDelay:    "10s",
		Encap:       encap,
		MOBIKE:      "no",
		Unique:      "never",
		Local:       auth{"psk", c.public.String()},
		Remote:      auth{"psk", c.there.String()},
		Children: map[string]childConf{
			c.child(): {LocalTS: []string{c.own.String()}, RemoteTS: []string{c.peer.String()},
				ESPProposals: []string{
					b.options.ESPProposal,
				}, StartAction: "start", CloseAction: "start", DPDAction: "clear", Mode: "tunnel",
				ReqID: fmt.Sprint(reqID), RekeyTime: "1h", Policies: "no"},
		},
	}
}

// session is the connection to charon.
type session struct{ *vici.Session }

func (s session) call(command string, argument any) error {
	m, err := vici.MarshalMessage(argument)
	if err == nil {
		_, err = s.CommandRequest(command, m)
	}
	if err != nil {
		return fmt.Errorf("tell charon to %s: %w", command, err)
	}
	return nil
}

// loaded are the names of the connections that charon has.
func (s session) loaded() (map[string]bool, error) {
	messages, err := s.StreamedCommandRequest("list-conns", "list-conn", nil)
	if err != nil {
		return nil, fmt.Errorf("ask charon for its connections: %w", err)
	}
	names := map[string]bool{}
	for _, m := range messages {
		if err := m.Err(); err != nil {
			return nil, fmt.Errorf("ask charon for its connections: %w", err)
		}
		for _, name := range m.Keys() {
			names[name] = true
		}
	}
	return names, nil
}

// sync brings charon to the wanted connections. One that it refuses does not keep it from the others.
func (b Backend) sync(s session, want map[string]connection) error {
	have, err := s.loaded()
	if err != nil {
		return err
	}
	var errs []error
	for name, c := range want {
		if !have[name] {
			errs = append(errs, s.call("load-conn", map[string]ikeConf{name: b.conf(c)}))
		}
	}
	for name := range have {
		if _, ok := want[name]; !ok {
			errs = append(errs, s.call("unload-conn", struct {
				Name string `vici:"name"`
			}{name}), s.hangUp(name))
		}
	}
	return errors.Join(errs...)
}

// missing are the wanted connections that have no tunnel and are about none. charon tries to reach a peer
// for ever, but not again after peer or kernel refused a tunnel.
func (s session) missing(want map[string]connection) ([]connection, error) {
	messages, err := s.StreamedCommandRequest("list-sas", "list-sa", nil)
	if err != nil {
		return nil, fmt.Errorf("ask charon for its tunnels: %w", err)
	}
	busy := map[string]bool{}
	for _, m := range messages {
		for _, name := range m.Keys() {
			sa, ok := m.Get(name).(*vici.Message)
			if !ok {
				continue
			}
			children, _ := sa.Get("child-sas").(*vici.Message)
			if sa.Get("state") != "ESTABLISHED" || children != nil && len(children.Keys()) > 0 {
				busy[name] = true
			}
		}
	}
	var missing []connection
	for name, c := range want {
		if !busy[name] {
			missing = append(missing, c)
		}
	}
	return missing, nil
}

// initiate calls again those that are missing, without waiting for an answer.
func (b Backend) initiate(s session, missing []connection) error {
	var errs []error
	for _, c := range missing {
		m, err := vici.MarshalMessage(struct {
			Child   string `vici:"child"`
			IKE     string `vici:"ike"`
			Timeout string `vici:"timeout"`
		}{c.child(), c.name(), "-1"})
		if err == nil {
			_, err = s.StreamedCommandRequest("initiate", "control-log", m)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// hangUp ends the tunnels of a connection; that there are none is no error.
func (s session) hangUp(name string) error {
	m, err := vici.MarshalMessage(struct {
		IKE     string `vici:"ike"`
		Force   string `vici:"force"`
		Timeout string `vici:"timeout"`
	}{name, "yes", "-1"})
	if err != nil {
		return err
	}
	_, _ = s.StreamedCommandRequest("terminate", "control-log", m)
	return nil
}
