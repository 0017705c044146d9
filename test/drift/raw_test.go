//go:build soak

package drift

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/attributes"
	"github.com/twill-net/twill/netstate/rtnl"
)

// raw are the objects of ours in the kernel's lists. A move alters one attribute of a message, or a field of its
// header, whether iproute2 knows it or not, and sends the message back.
type raw struct {
	name  string
	scope scope
	c     *camera
	d     dump
	m     message
	// set and del are the messages that write and delete such an object.
	set, del uint16
	last     uint16 // the highest number of an attribute
	fields   []field
}

// field is a part of a header.
type field struct{ at, size int }

var rawKinds = map[string]raw{
	"addr": {set: unix.RTM_NEWADDR, del: unix.RTM_DELADDR, last: 11, fields: []field{{1, 1}, {2, 1}, {3, 1}}},
	"route": {set: unix.RTM_NEWROUTE, del: unix.RTM_DELROUTE, last: 31,
		fields: []field{{1, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {7, 1}, {8, 4}}},
	"neigh": {set: unix.RTM_NEWNEIGH, del: unix.RTM_DELNEIGH, last: 16, fields: []field{{8, 2}, {10, 1}, {11, 1}}},
	"fdb":   {set: unix.RTM_NEWNEIGH, del: unix.RTM_DELNEIGH, last: 16, fields: []field{{8, 2}, {10, 1}, {11, 1}}},
	"link":  {set: unix.RTM_NEWLINK, last: 70, fields: []field{{8, 4}}},
}

// rawObjects returns an object for each message of the kernel's lists that is about what is ours.
func (f *finder) rawObjects(c *camera) ([]object, error) {
	devs, all, err := c.links()
	if err != nil {
		return nil, err
	}
	objects := f.ofMessages(c, links, all)
	for _, d := range dumps {
		if _, ok := rawKinds[d.kind]; !ok {
			continue
		}
		all, err := c.list(d, devs)
		if err != nil {
			return nil, err
		}
		objects = append(objects, f.ofMessages(c, d, all)...)
	}
	return objects, nil
}

func (f *finder) ofMessages(c *camera, d dump, all []message) []object {
	var objects []object
	for _, m := range all {
		dev := m.dev(m.data[4:8])
		if d.kind == "route" {
			dev = m.dev(m.attrs[unix.RTA_OIF])
			if m.data[4] == unix.RT_TABLE_LOCAL {
				continue
			}
		}
		if d.name(m) == "" || !slices.Contains(f.devices, dev) {
			continue
		}
		r := rawKinds[d.kind]
		r.c, r.d, r.m = c, d, m
		at, _ := netip.AddrFromSlice(m.attrs[unix.NDA_DST]) // RTA_DST and IFA_ADDRESS have the same number
		r.name, r.scope = fmt.Sprintf("raw-%s %s", d.kind, dev), f.scopeOf(dev, at)
		switch {
		case d.kind == "link":
			r.scope = f.scopeOf(dev, netip.Addr{})
		case at.IsValid():
			r.name += " " + f.label(at)
		default:
			r.name += fmt.Sprintf(" %x", m.attrs[unix.NDA_LLADDR])
		}
		objects = append(objects, object{name: r.name, draw: r.draw})
	}
	return objects
}

// draw returns a move that alters one field or attribute.
func (r raw) draw(random *rand.Rand) move {
	if r.d.kind == "link" {
		return r.drawLink(random)
	}
	header, attrs := slices.Clone(r.m.data[:r.d.header]), slices.Clone(r.m.data[r.d.header:])
	what := ""
	if random.IntN(3) == 0 {
		f := r.fields[random.IntN(len(r.fields))]
		mutate(random, header[f.at:f.at+f.size])
		what = fmt.Sprintf("%s to %x", r.called(attributes.Header, "", uint16(f.at)), header[f.at:f.at+f.size])
	} else {
		id, value := r.value(random, r.m.attrs, r.last)
		attrs = replace(attrs, id, value)
		what = fmt.Sprintf("%s to %x", r.called(attributes.Attributes, "", id), value)
	}
	altered := slices.Concat(header, attrs)
	send := func() error { return r.send(r.set, netlink.Create|netlink.Replace, altered) }
	back := func() error {
		_ = r.send(r.del, 0, altered)
		return r.send(r.set, netlink.Create|netlink.Replace, r.m.data)
	}
	return move{object: r.name, attr: "attribute", do: what, send: send, back: back, scope: r.scope}
}

// called is what the kernel's headers call an attribute or a field of the message, with its number.
func (r raw) called(place attributes.Place, path string, id uint16) string {
	at := attribute{object: r.d.kind, of: r.m.devs[r.m.index()][1], place: place, path: path, id: id}
	return fmt.Sprintf("%s (%d)", at, id)
}

// value returns another value for an attribute that the object has, or one for an attribute that it has not.
func (r raw) value(random *rand.Rand, attrs map[uint16][]byte, last uint16) (uint16, []byte) {
	var ids []uint16
	for id := range attrs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	if len(ids) > 0 && random.IntN(2) == 0 {
		id := ids[random.IntN(len(ids))]
		value := slices.Clone(attrs[id])
		mutate(random, value)
		return id, value
	}
	value := make([]byte, []int{0, 1, 2, 4, 4, 8, 16}[random.IntN(7)])
	mutate(random, value)
	return uint16(1 + random.IntN(int(last))), value
}

// mutate makes another value of the same size: near the old one, one of the ends, or any.
func mutate(random *rand.Rand, value []byte) {
	if len(value) == 0 {
		return
	}
	old := slices.Clone(value)
	for range 10 {
		switch random.IntN(5) {
		case 0:
			value[0] ^= 1 << random.IntN(8) // of a number in the machine's order one of the low bits
		case 1:
			clear(value)
		case 2:
			value[len(value)-1]++
		case 3:
			clear(value)
			value[0] = byte(1 + random.IntN(5))
		default:
			for i := range value {
				value[i] = byte(random.Uint32())
			}
		}
		if !slices.Equal(value, old) {
			return
		}
	}
}

// skips reports whether a link's attribute would take it out of the lab or, of a port, is its name: that is free, and a
// picture would have another object.
func (r raw) skips(id uint16) bool {
	switch id {
	case unix.IFLA_NET_NS_PID, unix.IFLA_NET_NS_FD, unix.IFLA_TARGET_NETNSID:
		return true
	case unix.IFLA_IFNAME:
		return r.m.devs[r.m.index()][1] == "veth"
	}
	return false
}

// drawLink: links are altered by messages that have nothing but what is to be altered.
func (r raw) drawLink(random *rand.Rand) move {
	if random.IntN(6) == 0 {
		bit := binary.NativeEndian.AppendUint32(nil, 1<<random.IntN(19))
		flipped := slices.Clone(r.m.data[8:12])
		for i := range bit {
			flipped[i] ^= bit[i]
		}
		return r.linkMove(fmt.Sprintf("flags to %x", flipped), r.linkHeader(flipped, bit), r.linkHeader(r.m.data[8:12], bit))
	}
	inside, in := r.m.attrs, nest{}
	for _, n := range nests {
		info := r.m.attrs[unix.IFLA_LINKINFO]
		if rtnl.Attribute(info, 0, n.kind) != nil && random.IntN(3) == 0 {
			in, inside = n, map[uint16][]byte{}
			for id, value := range rtnl.Attributes(rtnl.Attribute(info, 0, n.data)) {
				inside[id] = value
			}
		}
	}
	last, path := r.last, ""
	if in.data != 0 {
		last, path = lastInfo, fmt.Sprintf("18.%d", in.data)
	}
	id, value := r.value(random, inside, last)
	for in.data == 0 && r.skips(id) {
		id, value = r.value(random, inside, last)
	}
	none := make([]byte, 4)
	do, undo := r.linkHeader(none, none), r.linkHeader(none, none)
	do = append(do, r.wrap(in, encode(id, value))...)
	if old, ok := inside[id]; ok {
		undo = append(undo, r.wrap(in, encode(id, old))...)
	}
	return r.linkMove(fmt.Sprintf("%s to %x", r.called(attributes.Attributes, path, id), value), do, undo)
}

// nest is where in IFLA_LINKINFO the attributes of a kind of device or port are; zero: nowhere.
type nest struct{ kind, data uint16 }

var nests = []nest{{unix.IFLA_INFO_KIND, unix.IFLA_INFO_DATA}, {unix.IFLA_INFO_SLAVE_KIND, unix.IFLA_INFO_SLAVE_DATA}}

// lastInfo is the highest number of an attribute of a bridge, which has the most.
const lastInfo = 49

// wrap puts an attribute where the nest has it.
func (r raw) wrap(in nest, data []byte) []byte {
	if in.data == 0 {
		return data
	}
	kind := rtnl.Attribute(r.m.attrs[unix.IFLA_LINKINFO], 0, in.kind)
	return encode(unix.IFLA_LINKINFO|unix.NLA_F_NESTED,
		slices.Concat(encode(in.kind, kind), encode(in.data|unix.NLA_F_NESTED, data)))
}

func (r raw) linkHeader(flags, change []byte) []byte {
	return slices.Concat([]byte{0, 0, 0, 0}, r.m.data[4:8], flags, change)
}

func (r raw) linkMove(what string, do, undo []byte) move {
	return move{object: r.name, attr: "attribute", do: what, scope: r.scope,
		send: func() error { return r.send(r.set, 0, do) }, back: func() error { return r.send(r.set, 0, undo) }}
}

func (r raw) send(kind uint16, flags netlink.HeaderFlags, data []byte) error {
	_, err := r.c.route.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | netlink.Acknowledge | flags},
		Data:   data})
	return err
}

// encode returns an attribute with its padding.
func encode(id uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(len(value)+4))
	b = append(binary.NativeEndian.AppendUint16(b, id), value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// replace returns the attributes with another value of one, which is added if it is not there.
func replace(attrs []byte, id uint16, value []byte) []byte {
	var b []byte
	found := false
	for at, old := range rtnl.Attributes(attrs) {
		if at == id {
			old, found = value, true
		}
		b = append(b, encode(at, old)...)
	}
	if !found {
		b = append(b, encode(id, value)...)
	}
	return b
}

// alter makes a move.
func (r *run) alter(m move) (string, error) {
	if m.send != nil {
		return "", m.send()
	}
	return r.shell(m.do)
}

// undo takes it back.
func (r *run) undo(m move) (string, error) {
	if m.back != nil {
		return "", m.back()
	}
	return r.shell(m.undo)
}
