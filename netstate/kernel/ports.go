package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"maps"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/attributes"
	"github.com/twill-net/twill/netstate/rtnl"
)

// brportState is IFLA_BRPORT_STATE of linux/if_link.h.
const brportState = 1

var portTables = attributes.Of("port", "")

// portOptions is where a message about a port has the bridge's options: of a link, and of a bridge's own message.
var portOptions = map[byte][]uint16{
	unix.AF_UNSPEC: {unix.IFLA_LINKINFO, nl.IFLA_INFO_SLAVE_DATA},
	unix.AF_BRIDGE: {unix.IFLA_PROTINFO},
}

// port returns the port that the ifalias describes, and reports whether it does.
func (d device) port() (netstate.Port, bool) {
	if alias := d.Attribute(unix.IFLA_IFALIAS); len(alias) > 0 {
		return netstate.ParsePort(d.Name(), unix.ByteSliceToString(alias))
	}
	return netstate.Port{}, false
}

// decodePort returns the port as it is. mark is how the plugin made it; a pod's addresses are taken from there. What no
// field models is Extra. The bridge's own messages do not have the group.
func (d device) decodePort(mark netstate.Port, names map[int]string) netstate.Port {
	p := netstate.Port{Name: mark.Name, Pod: mark.Pod, Addrs: mark.Addrs, Bridge: names[d.Master()], MTU: d.MTU(), MAC: d.mac(),
		Up: d.up()}
	options := d.Attribute(portOptions[d.Link[0]]...)
	on := func(id uint16) bool { return rtnl.Number(rtnl.Attribute(options, 0, id)) == 1 }
	p.Hairpin, p.Isolated, p.Locked = on(nl.IFLA_BRPORT_MODE), on(nl.IFLA_BRPORT_ISOLATED), on(nl.IFLA_BRPORT_LOCKED)
	var e extra
	e.add(options != nil && on(nl.IFLA_BRPORT_LEARNING) == p.Locked, "learning %t", p.Locked)
	group := d.Attribute(unix.IFLA_GROUP)
	e.add(group != nil && mark.Group() != 0 && rtnl.Int(group) != mark.Group(), "group %d", rtnl.Int(group))
	for _, v := range append(d.portDeviations(), d.deviations()...) {
		e.add(true, "%s", v.says(names))
	}
	p.Extra = e.String()
	return p
}

// portDeviations returns the options that no field models and that are not as they must be. The kernel disables a port
// as long as the pod's end is down.
func (d device) portDeviations() (all []deviation) {
	for id, value := range rtnl.Attributes(d.Attribute(portOptions[d.Link[0]]...)) {
		a, ok := attributes.Find(portTables, attributes.Attributes, portTables[0].Path, id)
		if ok && differs(a, value) && (id != brportState || d.Flags()&unix.IFF_RUNNING != 0) {
			all = append(all, deviation{Attribute: a, value: bytes.Clone(value)})
		}
	}
	return all
}

// putPort plugs a port in and sets it up. One that is gone went with its pod.
func (a *applier) putPort(want netstate.Port) error {
	l, ok := a.links[want.Name]
	if !ok {
		return nil
	}
	bridge, err := a.link(want.Bridge)
	if err != nil {
		return err
	}
	index := int32(l.Attrs().Index)
	plug := &nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: index, Flags: unix.IFF_UP, Change: unix.IFF_UP}}
	attrs := []*nl.RtAttr{nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(bridge.Attrs().Index))),
		nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(want.MTU))), nl.NewRtAttr(unix.IFLA_ADDRESS, want.MAC[:])}
	if group := want.Group(); group != 0 {
		attrs = append(attrs, nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(uint32(group))))
	}
	if err := a.setLink(plug, attrs...); err != nil {
		return ignoreAbsent(err)
	}
	flags := map[int]bool{nl.IFLA_BRPORT_MODE: want.Hairpin, nl.IFLA_BRPORT_ISOLATED: want.Isolated,
		nl.IFLA_BRPORT_LOCKED: want.Locked, nl.IFLA_BRPORT_LEARNING: !want.Locked}
	var options []*nl.RtAttr
	for id, on := range flags {
		options = append(options, nl.NewRtAttr(id, []byte{btoi(on)}))
	}
	errs := []error{a.setOptions(index, options...)}
	d, err := a.device(want.Name)
	if err != nil {
		return ignoreAbsent(err)
	}
	errs = append(errs, a.putBack(d))
	for _, v := range d.portDeviations() {
		if err := a.setOptions(index, nl.NewRtAttr(int(v.ID), v.right())); err != nil {
			errs = append(errs, fmt.Errorf("put back %s: %w", v.Word, err))
		}
	}
	return ignoreAbsent(errors.Join(errs...))
}

func btoi(on bool) byte {
	if on {
		return 1
	}
	return 0
}

func (a *applier) setLink(header *nl.IfInfomsg, attrs ...*nl.RtAttr) error {
	r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, 0)
	r.AddData(header)
	for _, attr := range attrs {
		r.AddData(attr)
	}
	return errors.Join(a.bulk.Do(r)...)
}

// setOptions sets options of the bridge for a port.
func (a *applier) setOptions(index int32, options ...*nl.RtAttr) error {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
	for _, o := range options {
		data.AddChild(o)
	}
	return a.setLink(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: index}}, info)
}

// decodeBridgeFDB returns the entry, and reports whether somebody wrote it for the address of a pod. One that leads to
// the pod's own port does no harm.
func (f *filter) decodeBridgeFDB(e entry) (netstate.BridgeFDB, bool) {
	port, isPod := f.pods[e.mac()]
	o := netstate.BridgeFDB{Bridge: port.Bridge, MAC: e.mac(), Port: f.names[e.Index], Local: e.State&unix.NUD_PERMANENT != 0}
	written := e.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 && e.VLAN == 0
	right := o.Port == port.Name && !o.Local && !port.Locked
	return o, isPod && written && !right && f.names[e.Master] == port.Bridge
}

// bridgeFDB returns a request about a static entry of a bridge.
func (a *applier) bridgeFDB(kind, flags int, o netstate.BridgeFDB) (*nl.NetlinkRequest, error) {
	l, err := a.link(o.Port)
	if err != nil {
		return nil, err
	}
	m := &netlink.Ndmsg{Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER, Index: uint32(l.Attrs().Index),
		State: unix.NUD_NOARP}
	if o.Port == o.Bridge {
		m.Flags = netlink.NTF_SELF
	}
	r := nl.NewNetlinkRequest(kind, flags)
	r.AddData(m)
	r.AddData(nl.NewRtAttr(unix.NDA_LLADDR, o.MAC[:]))
	return r, nil
}

// portWatch tells from messages which pods' ports are not as the plugin made them. A bridge's own messages about its
// ports do not have their marks.
type portWatch struct {
	marks   map[int]netstate.Port // by index, of ports that are newer than the last Observe, too
	altered map[int]bool
	gone    map[int]bool // those of the last Observe that have gone since
	// changed is told of ports that came and went since the facts were read, if the fast path is wanted, and when the last of
	// those has gone for whose sake the bridge has a small MTU.
	changed chan<- struct{}
}

func (w portWatch) note(f *filter, kind uint16, m []byte) {
	d, err := parseDevice(m)
	if kind != unix.RTM_NEWLINK && kind != unix.RTM_DELLINK || err != nil {
		return
	}
	index, family := d.Index(), d.Link[0]
	mark, ok := f.marks[index]
	if family == unix.AF_UNSPEC && (f.isNewsOfPod(kind, d) || kind == unix.RTM_DELLINK && w.wasSmallest(f, d)) {
		loop.Notify(w.changed)
	}
	switch {
	case family == unix.AF_UNSPEC:
		if mark, ok = d.port(); ok && kind == unix.RTM_NEWLINK {
			w.marks[index] = mark
		} else {
			delete(w.marks, index)
			delete(w.altered, index)
		}
	case !ok:
		mark, ok = w.marks[index]
	}
	if !ok || kind == unix.RTM_DELLINK || !f.wanted[mark.Bridge] || portOptions[family] == nil {
		return
	}
	bridge, _ := f.want[netstate.Key{Kind: netstate.KindLink, Name: mark.Bridge}].(netstate.Bridge)
	if delete(w.altered, index); d.decodePort(mark, f.names) != mark || mark.MTU < bridge.MTU {
		w.altered[index] = true
	}
}

// wasSmallest notes that a port has gone, and reports whether it had the bridge's MTU and all that stay have more. It may
// have gone before the last Observe, and after the facts were read, which made that MTU wanted.
func (w portWatch) wasSmallest(f *filter, d device) bool {
	maps.DeleteFunc(w.gone, func(i int, _ bool) bool { _, known := f.marks[i]; return !known })
	w.gone[d.Index()] = true
	gone, ok := d.port()
	bridge, _ := f.want[netstate.Key{Kind: netstate.KindLink, Name: gone.Bridge}].(netstate.Bridge)
	if !ok || gone.MTU != bridge.MTU {
		return false
	}
	all := maps.Clone(f.marks)
	maps.Copy(all, w.marks)
	for i, p := range all {
		if !w.gone[i] && p.Bridge == gone.Bridge && p.MTU <= gone.MTU {
			return false
		}
	}
	return true
}

// isNewsOfPod reports whether a message says that the pods' ports are not the wanted ones, as they were when the facts were
// read, and the fast path is wanted, which knows pods by their ports.
func (f *filter) isNewsOfPod(kind uint16, d device) bool {
	mark, marked := d.port()
	known := f.want[netstate.Port{Name: d.Name()}.Key()]
	switch {
	case f.want[netstate.Switch{}.Key()] == nil:
		return false
	case kind == unix.RTM_DELLINK:
		return known != nil
	}
	return marked && known != netstate.Object(mark) && f.wanted[mark.Bridge]
}
