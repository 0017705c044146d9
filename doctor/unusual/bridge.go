package unusual

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/attributes"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Of linux/if_link.h and linux/if_bridge.h.
const (
	portState, portCost = 1, 3
	forwarding          = 3
	vlanFiltering       = 7 // IFLA_BR_VLAN_FILTERING
	bridgeVLANInfo      = 2 // IFLA_BRIDGE_VLAN_INFO
	vlanFilter          = 2 // RTEXT_FILTER_BRVLAN
	vlanPVID, vlanUntag = 2, 4
	defaultVLAN         = 1
)

// unusualPorts compares the ports of bridges with a new port.
func (s *space) unusualPorts() (all []locate.Object, err error) {
	f, err := reference()
	if err != nil {
		return nil, err
	}
	filtering := false
	for _, l := range s.links {
		filtering = filtering || rtnl.Number(l.Attribute(unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA, vlanFiltering)) == 1
		if s.byIndex(l.master).kind == "bridge" {
			all = append(all, s.port(l, f.like("", l.kind).port)...)
		}
	}
	if !filtering {
		return all, nil
	}
	vlans, err := s.vlans()
	return append(all, vlans...), err
}

var portWords = attributes.Of("port", "")

// port compares all options of one. The kernel disables a port as long as the other end is down.
func (s *space) port(l, fresh link) (all []locate.Object) {
	path := []uint16{unix.IFLA_LINKINFO, nl.IFLA_INFO_SLAVE_DATA}
	bridge := s.names[l.master]
	for id, value := range rtnl.Attributes(l.Attribute(path...)) {
		row, known := attributes.Find(portWords, attributes.Attributes, portWords[0].Path, id)
		usual := fresh.Attribute(append(path, id)...)
		is, want := rtnl.Number(value), rtnl.Number(usual)
		if id == portState {
			want = forwarding
		}
		if !known || row.Fate == attributes.Derived || is == want || id == portState && l.flags&unix.IFF_RUNNING == 0 ||
			id == portCost && l.kind != "veth" { // a matter of the device's speed
			continue
		}
		text, wantText := portValue(id, is), portValue(id, want)
		fix := wantText
		if id == portState {
			fix = strconv.Itoa(forwarding)
		}
		all = append(all, locate.Object{Kind: locate.BridgePort, Dev: l.name, Bridge: bridge, Part: row.Word, Value: text,
			Usual: wantText, Text: fmt.Sprintf("%s of %s: %s %s", l.name, bridge, row.Word, text),
			Fix: fmt.Sprintf("ip link set dev %s type bridge_slave %s %s", l.name, row.Word, fix)})
	}
	return all
}

// numbered are the options of a port that are not on or off.
var numbered = []uint16{portState, 2, portCost, 25, 31, 34, 37, 42, 44}

func portValue(id uint16, value uint64) string {
	states := []string{"disabled", "listening", "learning", "forwarding", "blocking"}
	switch {
	case id == portState && value < uint64(len(states)):
		return states[value]
	case slices.Contains(numbered, id):
		return strconv.FormatUint(value, 10)
	}
	return onOff(value)
}

// vlans returns the ports' VLANs other than the one that a new port has.
func (s *space) vlans() (all []locate.Object, err error) {
	messages, err := s.list("VLANs", unix.RTM_GETLINK, nl.NewIfInfomsg(unix.AF_BRIDGE),
		nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(vlanFilter)))
	for _, m := range messages {
		l, err := parseLink(m)
		if err != nil {
			return nil, err
		}
		of, self := s.names[l.master], ""
		if s.byIndex(l.index).kind == "bridge" {
			of, self = l.name, " self"
		}
		usual := false
		for kind, value := range rtnl.Attributes(l.Attribute(unix.IFLA_AF_SPEC)) {
			if kind != bridgeVLANInfo || len(value) < 4 {
				continue
			}
			flags, id := binary.NativeEndian.Uint16(value), binary.NativeEndian.Uint16(value[2:])
			if id == defaultVLAN && flags&(vlanPVID|vlanUntag) == vlanPVID|vlanUntag {
				usual = true
				continue
			}
			all = append(all, locate.Object{Kind: locate.BridgePort, Dev: l.name, Bridge: of, Part: "vlan", Value: strconv.Itoa(int(id)),
				Usual: "no such VLAN",
				Text:  fmt.Sprintf("%s of %s: vlan %d%s", l.name, of, id, vlanWords(flags)),
				Fix:   fmt.Sprintf("bridge vlan del vid %d dev %s%s", id, l.name, self)})
		}
		if !usual {
			all = append(all, locate.Object{Kind: locate.BridgePort, Dev: l.name, Bridge: of, Part: "no vlan", Value: "1",
				Usual: "vlan 1 PVID Egress Untagged",
				Text:  fmt.Sprintf("%s of %s: no vlan 1 PVID Egress Untagged", l.name, of),
				Fix:   fmt.Sprintf("bridge vlan add vid 1 pvid untagged dev %s%s", l.name, self)})
		}
	}
	return all, err
}

func vlanWords(flags uint16) (text string) {
	if flags&vlanPVID != 0 {
		text += " PVID"
	}
	if flags&vlanUntag != 0 {
		text += " Egress Untagged"
	}
	return text
}

// unusualForwarding returns the entries of forwarding tables that somebody wrote. The kernel writes those of a device's
// own addresses, and of the multicast groups that it listens to.
func (s *space) unusualForwarding() (all []locate.Object, err error) {
	entries, err := s.entries(unix.AF_BRIDGE, 0)
	own := func(e entry) bool {
		return slices.ContainsFunc(s.links, func(l link) bool {
			stands := int(rtnl.Number(l.Attribute(unix.IFLA_LINK))) == e.Index // on it, and has its packets
			return (l.index == e.Index || l.index == e.Master || stands) &&
				slices.Equal(l.Attribute(unix.IFLA_ADDRESS), e.MAC)
		})
	}
	for _, e := range entries {
		switch {
		case e.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) == 0: // learned
		case e.Flags&unix.NTF_SELF != 0 && len(e.MAC) > 0 && e.MAC[0]&1 == 1 && !e.Dst.IsValid():
		case e.State&unix.NUD_PERMANENT != 0 && e.More == 0 && !e.Dst.IsValid() && own(e):
		default:
			all = append(all, s.forwarding(e))
		}
	}
	return all, err
}

// forwarding returns an entry as bridge fdb prints it.
func (s *space) forwarding(e entry) locate.Object {
	dev := s.names[e.Index]
	var w words
	w.add(true, "%s dev %s", net.HardwareAddr(e.MAC), dev)
	var selector words
	selector.add(e.Dst.IsValid(), "dst %s", e.Dst)
	selector.add(e.VLAN != 0, "vlan %d", e.VLAN)
	selector.add(e.Port != 0, "port %d", e.Port)
	selector.add(e.VNI != 0, "vni %d", e.VNI)
	selector.add(e.Source != 0, "src_vni %d", e.Source)
	selector.add(e.Via != 0, "via %s", s.names[e.Via])
	selector.add(e.NextHop != 0, "nhid %d", e.NextHop)
	w = append(w, selector...)
	place := "self"
	w.add(e.Flags&unix.NTF_SELF != 0, "self")
	w.add(e.Flags&unix.NTF_SELF == 0, "master %s", s.names[e.Master])
	if e.Flags&unix.NTF_SELF == 0 && e.Index != e.Master {
		place = "master"
	}
	w.add(e.Flags&unix.NTF_EXT_LEARNED != 0, "extern_learn")
	w.add(e.Flags&rtnl.Sticky != 0, "sticky")
	w.add(e.More != 0, "flags %#x", e.More)
	if e.State&unix.NUD_PERMANENT != 0 {
		w.add(true, "permanent")
	} else {
		w.add(true, "static")
	}
	var fix words
	fix.add(true, "bridge fdb del %s dev %s", net.HardwareAddr(e.MAC), dev)
	o := locate.Object{Kind: locate.FDB, Dev: dev, MAC: net.HardwareAddr(e.MAC).String(), Text: w.String(),
		Usual: "no such entry",
		Fix:   append(append(fix, selector...), place).String()}
	if mac, err := netstate.ParseMAC(o.MAC); err == nil {
		o.Key = netstate.FDB{Dev: dev, MAC: mac, Dst: e.Dst}.Key()
		if e.Flags&unix.NTF_SELF == 0 {
			o.Bridge = s.names[e.Master]
			o.Key = netstate.BridgeFDB{Bridge: o.Bridge, MAC: mac}.Key()
		}
	}
	return o
}

// unusualBridging joins what is unusual about bridges.
func (s *space) unusualBridging() ([]locate.Object, error) {
	ports, portErr := s.unusualPorts()
	entries, entryErr := s.unusualForwarding()
	return append(ports, entries...), errors.Join(portErr, entryErr)
}
