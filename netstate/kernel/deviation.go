package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/attributes"
	"github.com/twill-net/twill/netstate/rtnl"
)

// deviceTables are the attributes of each type of device that we make, and of the pods' ports.
var deviceTables = map[string][]attributes.Table{
	"vxlan":     attributes.Of("link", "vxlan"),
	"bridge":    attributes.Of("link", "bridge"),
	"tun":       attributes.Of("link", "tun"),
	"ipip":      attributes.Of("link", "ipip"),
	"ip6tnl":    attributes.Of("link", "ip6tnl"),
	"wireguard": attributes.Of("link", "wireguard"),
	"veth":      attributes.Of("link", "veth"),
}

// deviation is a pinned attribute of a device that is not as it must be.
type deviation struct {
	attributes.Attribute
	bit   bool     // of the flags
	path  []uint16 // what it is nested in
	value []byte   // as it is; nil for a bit
}

// deviations returns the attributes that no field of an object models and that are not as they must be.
func (d device) deviations() (all []deviation) {
	tables := deviceTables[d.Kind()]
	for i := range uint16(32) {
		a, ok := attributes.Find(tables, attributes.Bits, nil, i)
		if ok && a.Fate == attributes.Pinned && a.Field == "" && uint64(d.Flags()>>i&1) != a.Value {
			all = append(all, deviation{Attribute: a, bit: true})
		}
	}
	return nested(all, tables, d.Link[unix.SizeofIfInfomsg:], make([]uint16, 0, 4))
}

func nested(all []deviation, tables []attributes.Table, data []byte, path []uint16) []deviation {
	for id, value := range rtnl.Attributes(data) {
		if a, ok := attributes.Find(tables, attributes.Attributes, path, id); ok && differs(a, value) {
			all = append(all, deviation{Attribute: a, path: slices.Clone(path), value: bytes.Clone(value)})
		}
		if within := append(path, id); attributes.Nests(tables, within) {
			all = nested(all, tables, value, within)
		}
	}
	return all
}

// differs reports whether an attribute must have another value.
func differs(a attributes.Attribute, value []byte) bool {
	if a.Fate != attributes.Pinned || a.Field != "" {
		return false
	}
	n := read(a, value)
	return n > a.Value || n < a.Value && !a.Most
}

// read returns a value as the number that the tables have. What is longer than a number is only compared with zero.
func read(a attributes.Attribute, value []byte) (n uint64) {
	switch {
	case a.Form == attributes.Options && len(value) == 8:
		return rtnl.Number(value[:4])
	case len(value) > 8 && len(bytes.Trim(value, "\x00")) > 0:
		return math.MaxUint64
	case a.Form != attributes.Network && len(value) <= 8:
		return rtnl.Number(value)
	}
	for _, b := range value {
		n = n<<8 | uint64(b)
	}
	return n
}

// right returns the bytes that a deviation's value must be.
func (v deviation) right() []byte {
	b := make([]byte, len(v.value))
	switch {
	case v.Form == attributes.Options && len(b) == 8: // the kernel refuses to say anything of options that it has not
		copy(b[4:], v.value[:4])
	case v.Form == attributes.Network:
		for i, n := len(b)-1, v.Value; i >= 0; i, n = i-1, n>>8 {
			b[i] = byte(n)
		}
	case len(b) == 1:
		b[0] = byte(v.Value)
	case len(b) == 2:
		binary.NativeEndian.PutUint16(b, uint16(v.Value))
	case len(b) == 4:
		binary.NativeEndian.PutUint32(b, uint32(v.Value))
	case len(b) == 8:
		binary.NativeEndian.PutUint64(b, v.Value)
	}
	return b
}

// extra says in words what is not as it must be.
func (d device) extra(names map[int]string) string {
	var e extra
	for _, v := range d.deviations() {
		e.add(true, "%s", v.says(names))
	}
	return e.String()
}

func (v deviation) says(names map[int]string) string {
	if v.bit {
		return fmt.Sprintf("%s %d", v.Word, 1-v.Value)
	}
	n := read(v.Attribute, v.value)
	switch addr, isAddr := netip.AddrFromSlice(v.value); {
	case v.Form == attributes.Address && isAddr:
		return v.Word + " " + addr.String()
	case v.Form == attributes.Device:
		return v.Word + " " + names[int(n)]
	case v.Form == attributes.Network:
		return fmt.Sprintf("%s %#x", v.Word, n)
	}
	return fmt.Sprintf("%s %d", v.Word, n)
}

// errFixed means that the kernel changes something only by making the device again.
var errFixed = errors.New("it cannot be changed on a device that exists")

// putBack changes what deviates. What the kernel refuses is tried once more when the rest is as it must be: it clears
// protodown, for one, only when there is no reason left.
func (a *applier) putBack(d device) error {
	left := d.deviations()
	var errs []error
	for range 2 {
		errs = nil
		left = slices.DeleteFunc(left, func(v deviation) bool {
			err := a.putBackOne(d, v)
			if err != nil {
				errs = append(errs, fmt.Errorf("put back %s: %w", v.Word, err))
			}
			return err == nil
		})
	}
	return errors.Join(errs...)
}

func (a *applier) putBackOne(d device, v deviation) error {
	r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(d.Index())
	r.AddData(header)
	switch {
	case v.bit:
		header.Change = 1 << v.ID
		header.Flags = uint32(v.Value) << v.ID
	case len(v.value) == 0:
		return errFixed // it would have to be absent
	default:
		r.AddData(d.wrap(v))
	}
	err := errors.Join(a.bulk.Do(r)...)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %w", errFixed, err)
	}
	return err
}

// wrap returns the attribute as it must be, in those that it is nested in. The kernel changes attributes of a device's
// type only with the name of the type, and takes for absent what is not said of a tunnel.
func (d device) wrap(v deviation) *nl.RtAttr {
	inner := nl.NewRtAttr(int(v.ID), v.right())
	for i := len(v.path) - 1; i >= 0; i-- {
		outer := nl.NewRtAttr(int(v.path[i])|unix.NLA_F_NESTED, nil)
		outer.AddChild(inner)
		switch kind := d.Kind(); {
		case i == 1 && v.path[0] == unix.IFLA_LINKINFO && kind == "ipip":
			for id, value := range rtnl.Attributes(d.Attribute(v.path...)) {
				if id != v.ID {
					outer.AddRtAttr(int(id), value)
				}
			}
		case i == 0 && v.path[0] == unix.IFLA_LINKINFO:
			outer.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated(kind))
		}
		inner = outer
	}
	return inner
}
