//go:build soak

package drift

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// finder lists the objects of a node.
type finder struct {
	ctx     context.Context
	lab     *lab.Lab
	node    *lab.Node
	devices []string // the overlay's, then the bridge, then the pods' ports
	objects []object
}

// find returns all objects of the agent's on the lab's first node, in an order that is the same in each lab, and lets
// the camera see the parameters of their devices.
func find(ctx context.Context, l *lab.Lab, c *camera) ([]object, error) {
	f := finder{ctx: ctx, lab: l, node: l.Nodes()[0]}
	steps := []func() error{f.links, f.addrs, f.routes, f.neighbours, f.fdb, f.pods, f.sysctls, f.nft, f.iptables, f.files}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	c.devices = f.devices
	more, err := f.rawObjects(c)
	if err != nil {
		return nil, err
	}
	f.objects = append(f.objects, more...)
	slices.SortStableFunc(f.objects, func(a, b object) int { return strings.Compare(a.name, b.name) })
	return f.objects, nil
}

func (f *finder) add(o object) { f.objects = append(f.objects, o) }

func (f *finder) ask(command string, into any) error {
	out, err := f.node.Exec(f.ctx, "sh", "-c", command)
	if err != nil || strings.TrimSpace(out) == "" {
		return err
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}

// label names an address by the node whose subnet it is in. Subnets are another in each lab, and a move is to have the
// same name.
func (f *finder) label(at netip.Addr) string {
	for _, n := range f.lab.Nodes() {
		for _, p := range n.Subnets() {
			if p.Contains(at) {
				b := at.AsSlice()
				return fmt.Sprintf("%s %s .%d", n.Name, netstate.FamilyOf(at), b[len(b)-1])
			}
		}
	}
	return at.String()
}

const bridge = "cni0"

func overlay(dev string) bool { return strings.HasPrefix(dev, "flannel") }

// litter is what the names of devices begin with that moves make. They are in no picture.
const litter = "drift"

// scopeOf returns the flows that something has to do with that is about a device and an address: a peer's, those of an
// overlay device, or all.
func (f *finder) scopeOf(dev string, at netip.Addr) scope {
	s := scope{anyFamily: !at.IsValid(), remoteOnly: overlay(dev)}
	if at.IsValid() {
		s.family = netstate.FamilyOf(at)
	}
	for _, n := range f.lab.Nodes()[1:] {
		of := func(p netip.Prefix) bool { return p.Contains(at) }
		if slices.Contains(n.Underlay(), at) || slices.ContainsFunc(n.Subnets(), of) {
			s.peer = n.Name
		}
	}
	switch {
	case dev == "flannel.1":
		s.family, s.anyFamily = netstate.IPv4, false
	case strings.HasPrefix(dev, "flannel-v6"):
		s.family, s.anyFamily = netstate.IPv6, false
	}
	return s
}

func familyScope(f netstate.Family) scope { return scope{family: f} }

func (f *finder) links() error {
	var links []map[string]any
	if err := f.ask("ip -d -j link show", &links); err != nil {
		return err
	}
	var tunnels, ports []string
	for _, l := range links {
		dev, _ := l["ifname"].(string)
		o := object{name: "link " + dev, words: map[string]string{"DEV": dev}, report: l,
			scope: f.scopeOf(dev, netip.Addr{})}
		info, _ := l["linkinfo"].(map[string]any)
		for _, part := range []string{"info_data", "info_slave_data"} {
			data, _ := info[part].(map[string]any)
			for k, v := range data {
				if _, taken := o.report[k]; !taken {
					o.report[k] = v
				}
			}
		}
		switch {
		case overlay(dev) && info["info_kind"] == "vxlan":
			tunnels, o.setters = append(tunnels, dev), slices.Concat(linkSetters, vxlanSetters)
		case overlay(dev):
			tunnels, o.setters = append(tunnels, dev), linkSetters
		case dev == bridge:
			o.setters = slices.Concat(linkSetters, bridgeSetters)
		case l["master"] == bridge:
			ports = append(ports, dev)
			renamed := func(s setter) bool { return s.attr == "name" } // free, and a picture would have another object
			o.name = "port " + dev
			o.setters = slices.DeleteFunc(slices.Concat(linkSetters, portSetters), renamed)
		case dev == lab.NodeDevice:
			o.setters = underlaySetters
		default:
			continue
		}
		f.add(o)
	}
	f.devices = slices.Concat(tunnels, []string{bridge}, ports)
	return nil
}

func (f *finder) addrs() error {
	var links []struct {
		Name  string           `json:"ifname"`
		Addrs []map[string]any `json:"addr_info"`
	}
	if err := f.ask("ip -j addr show", &links); err != nil {
		return err
	}
	for _, l := range links {
		for _, a := range l.Addrs {
			addr, err := netip.ParseAddr(fmt.Sprint(a["local"]))
			if err != nil || !overlay(l.Name) && l.Name != bridge || addr.IsLinkLocalUnicast() {
				continue
			}
			next := addr.Next()
			for range 7 {
				next = next.Next()
			}
			nodad := ""
			if addr.Is6() {
				nodad = "nodad"
			}
			f.add(object{name: fmt.Sprintf("addr %s of %s", f.label(addr), l.Name), setters: addrSetters, report: a,
				scope: scope{family: netstate.FamilyOf(addr), remoteOnly: overlay(l.Name)},
				words: map[string]string{"DEV": l.Name, "BARE": addr.String(), "NODAD": nodad,
					"ADDR": fmt.Sprintf("%s/%v", addr, a["prefixlen"]), "NEXT": fmt.Sprintf("%s/%v", next, a["prefixlen"])}})
		}
	}
	return nil
}
