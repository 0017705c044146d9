package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// shortcutKey is struct shortcut_key of bpf/maps.h.
type shortcutKey struct {
	Bits uint32
	Dst  [16]byte
}

// shortcut is struct shortcut.
type shortcut struct {
	Mode, Dev, From, MTU uint32
	Local, Outer         [16]byte
	VNI                  uint32
	Port                 uint16
	Src, MAC             netstate.MAC
	Zero                 uint16
}

// pod is struct pod.
type pod struct {
	Dev         uint32
	MAC, Bridge netstate.MAC
}

// modes are in the order of enum result.
var modes = []netstate.ShortcutMode{netstate.Encapsulate, netstate.ThroughVTEP, netstate.NextHop}

// v4Bits is the length of what stands before an IPv4 address to make it an IPv6 address.
const v4Bits = 96

func encodeKey(p netip.Prefix) shortcutKey {
	k := shortcutKey{Bits: uint32(p.Bits()), Dst: p.Addr().As16()}
	if p.Addr().Is4() {
		k.Bits += v4Bits
	}
	return k
}

func (k shortcutKey) prefix() netip.Prefix {
	a := netip.AddrFrom16(k.Dst)
	if a.Is4In6() && k.Bits >= v4Bits {
		return netip.PrefixFrom(a.Unmap(), int(k.Bits-v4Bits))
	}
	return netip.PrefixFrom(a, int(k.Bits))
}

// encodeAddr returns zeros for no address.
func encodeAddr(a netip.Addr) (b [16]byte) {
	if a.IsValid() {
		b = a.As16()
	}
	return b
}

func decodeAddr(b [16]byte) netip.Addr {
	if b == [16]byte{} {
		return netip.Addr{}
	}
	return netip.AddrFrom16(b).Unmap()
}

func (n names) encodeShortcut(s netstate.Shortcut) (e shortcut, err error) {
	e = shortcut{MTU: uint32(s.MTU), Local: encodeAddr(s.Local), Outer: encodeAddr(s.Outer), VNI: uint32(s.VNI),
		Port: uint16(s.Port), Src: s.Src, MAC: s.MAC}
	for i, m := range modes {
		if m == s.Mode {
			e.Mode = uint32(i)
			e.Dev, err = n.index(s.Dev)
			if err == nil {
				e.From, err = n.index(s.From)
			}
			return e, err
		}
	}
	return e, fmt.Errorf("a shortcut of the mode %q: want one of %v", s.Mode, modes)
}

func (n known) decodeShortcut(k shortcutKey, e shortcut) netstate.Shortcut {
	s := netstate.Shortcut{Dst: k.prefix(), MTU: int(e.MTU), Local: decodeAddr(e.Local), Outer: decodeAddr(e.Outer),
		VNI: int(e.VNI), Port: int(e.Port), Src: e.Src, MAC: e.MAC}
	if e.Mode < uint32(len(modes)) {
		s.Mode = modes[e.Mode]
	} else {
		s.Extra = fmt.Sprintf("mode %d ", e.Mode)
	}
	dev, from := "", ""
	s.Dev, dev = n.decodeDev(e.Dev)
	s.From, from = n.decodeDev(e.From)
	if from != dev {
		dev += from
	}
	s.Extra += dev
	return s
}

// known are the names of devices at one moment, each asked for once.
type known struct {
	names
	found map[uint32]string
}

func (n known) name(index uint32) (string, bool) {
	name, ok := n.found[index]
	if !ok {
		if name, ok = n.names.name(index); ok {
			n.found[index] = name
		}
	}
	return name, ok
}

// decodeDev returns the name of a device, or what there is to say when there is none.
func (n known) decodeDev(index uint32) (name, extra string) {
	if name, ok := n.name(index); ok {
		return name, ""
	}
	return "", fmt.Sprintf("(device %d is gone)", index)
}

func (n names) encodePod(p netstate.PodPort) (e pod, err error) {
	e = pod{MAC: p.MAC, Bridge: p.Bridge}
	e.Dev, err = n.index(p.Dev)
	return e, err
}

func (n known) decodePod(addr [16]byte, e pod) netstate.PodPort {
	p := netstate.PodPort{Addr: decodeAddr(addr), MAC: e.MAC, Bridge: e.Bridge}
	p.Dev, p.Extra = n.decodeDev(e.Dev)
	return p
}

// entries calls do with each entry of a map. A dump that entries come into or go from meanwhile may miss others, or
// have some twice: the caller alone writes them.
func entries[K, V any](m *ebpf.Map, do func(K, V)) error {
	const size = 1024
	keys, values := make([]K, size), make([]V, size)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		for i := range n {
			do(keys[i], values[i])
		}
		if err != nil {
			return nil
		}
	}
}

// observeEntries adds what the maps of peers and pods have.
func (p *Provider) observeEntries(want, state netstate.State) error {
	n := known{p.names, map[uint32]string{}}
	err := p.learn()
	if err == nil {
		err = entries(p.maps[shortcutsMap], func(k shortcutKey, e shortcut) { observed(want, state, n.decodeShortcut(k, e)) })
	}
	if err == nil {
		err = entries(p.maps[podsMap], func(k [16]byte, e pod) { observed(want, state, n.decodePod(k, e)) })
	}
	if err != nil {
		return fmt.Errorf("list the fast path's entries: %w", err)
	}
	return nil
}

// observed adds v. One that is as wanted is the wanted object itself, so that thousands are not allocated again.
func observed[T interface {
	comparable
	netstate.Object
}](want, state netstate.State, v T) {
	key := v.Key()
	if w, ok := want[key].(T); ok && w == v {
		state[key] = want[key]
		return
	}
	state[key] = v
}

// observeSwitch adds the settings. HZ is never 0 in settings that were written.
func (p *Provider) observeSwitch(state netstate.State) error {
	var have parameters
	if err := p.maps[settingsMap].Lookup(uint32(0), &have); err != nil {
		return fmt.Errorf("read the fast path's settings: %w", err)
	}
	if have.HZ == 0 {
		return nil
	}
	now, err := readParameters()
	if err != nil {
		return err
	}
	extra := have.differences(now)
	for _, file := range p.lostPins() {
		extra.add(true, "without the pin %s", file)
	}
	state.Add(netstate.Switch{SkipMark: have.SkipMark, Extra: strings.Join(extra, " ")})
	return nil
}

// put writes an object of one of the maps.
func (p *Provider) put(o netstate.Object) error {
	switch o := o.(type) {
	case netstate.Shortcut:
		e, err := p.names.encodeShortcut(o)
		if err != nil {
			return err
		}
		return write(p.maps[shortcutsMap], p.written.shortcuts, encodeKey(o.Dst), e)
	case netstate.PodPort:
		e, err := p.names.encodePod(o)
		if errors.Is(err, unix.ENODEV) {
			return p.remove(o) // the pod went while this was planned: the kernel announces it
		}
		if err != nil {
			return err
		}
		return write(p.maps[podsMap], p.written.pods, encodeAddr(o.Addr), e)
	case netstate.Switch:
		now, err := readParameters()
		if err != nil {
			return err
		}
		now.SkipMark = o.SkipMark
		if err := p.pinAgain(); err != nil {
			return err
		}
		return p.putSettings(now)
	}
	return fmt.Errorf("a %s is not an object of the fast path", o.Key().Kind)
}

// write puts an entry into a map, and notes it in written.
func write[K, V comparable](m *ebpf.Map, written map[K]V, k K, v V) error {
	err := m.Put(k, v)
	if err == nil && written != nil {
		written[k] = v
	}
	return err
}

// erase deletes an entry of a map, if it is there.
func erase[K, V comparable](m *ebpf.Map, written map[K]V, k K) error {
	err := m.Delete(k)
	if err == nil || errors.Is(err, ebpf.ErrKeyNotExist) {
		delete(written, k)
		return nil
	}
	return err
}

func (p *Provider) putSettings(s parameters) error {
	err := p.maps[settingsMap].Put(uint32(0), s)
	if err == nil {
		p.written.settings = s
	}
	return err
}

// remove deletes an object of one of the maps.
func (p *Provider) remove(o netstate.Object) error {
	switch o := o.(type) {
	case netstate.Shortcut:
		return erase(p.maps[shortcutsMap], p.written.shortcuts, encodeKey(o.Dst))
	case netstate.PodPort:
		return erase(p.maps[podsMap], p.written.pods, encodeAddr(o.Addr))
	case netstate.Switch:
		return p.putSettings(parameters{})
	}
	return fmt.Errorf("a %s is not an object of the fast path", o.Key().Kind)
}
