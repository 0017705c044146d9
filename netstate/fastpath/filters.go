package fastpath

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Where our filter is among those of a device: the kernel allows others before and behind it, but then it is not
// attached.
const (
	filterPriority = 100
	filterHandle   = 1
	filterPrefix   = "twill-" // before the program's name
)

// hooks are the places of filters of the qdisc clsact.
var hooks = []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS}

// filters are those of a device.
type filters struct {
	ours  []*netlink.BpfFilter
	other []netlink.Filter
}

// qdiscs returns by index of device what kind of qdisc is where packets come in: clsact, or ingress.
func (s sockets) qdiscs() (map[uint32]string, error) {
	return rtnl.Retry("queueing disciplines", func() (map[uint32]string, error) {
		kinds := map[uint32]string{}
		r := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
		r.AddData(&nl.TcMsg{Family: unix.AF_UNSPEC})
		err := s.bulk.List(r, func(m []byte) error {
			if len(m) < nl.SizeofTcMsg {
				return fmt.Errorf("a queueing discipline of %d bytes: want at least %d", len(m), nl.SizeofTcMsg)
			}
			if msg := nl.DeserializeTcMsg(m); msg.Parent == netlink.HANDLE_INGRESS {
				kinds[uint32(msg.Ifindex)] = unix.ByteSliceToString(rtnl.Attribute(m, nl.SizeofTcMsg, nl.TCA_KIND))
			}
			return nil
		})
		return kinds, err
	})
}

// filters lists those of a device that has the qdisc clsact.
func (s sockets) filters(index uint32) (f filters, err error) {
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: int(index)}}
	for _, hook := range hooks {
		list, err := rtnl.Retry("filters", func() ([]netlink.Filter, error) { return s.nl.FilterList(link, hook) })
		if err != nil {
			return f, fmt.Errorf("list the filters: %w", err)
		}
		for _, filter := range list {
			b, ok := filter.(*netlink.BpfFilter)
			if ok && hook == netlink.HANDLE_MIN_INGRESS && ourFilter(b) {
				f.ours = append(f.ours, b)
			} else {
				f.other = append(f.other, filter)
			}
		}
	}
	return f, nil
}

func ourFilter(b *netlink.BpfFilter) bool {
	return programOf(b) != ""
}

// programOf returns the program of a filter's name.
func programOf(b *netlink.BpfFilter) netstate.ProgramName {
	for _, name := range programs {
		if b.Name == filterPrefix+string(name) {
			return name
		}
	}
	return ""
}

// observePrograms adds the programs that are attached.
func (p *Provider) observePrograms(state netstate.State) error {
	kinds, err := p.qdiscs()
	if err != nil {
		return err
	}
	for index, kind := range kinds {
		if kind != "clsact" {
			continue
		}
		dev, there := p.names.name(index)
		if !there {
			continue
		}
		f, err := p.filters(index)
		switch {
		case err == nil && len(f.ours) > 0:
			state.Add(p.decodeFilters(dev, f))
		case err != nil:
			if _, there := p.names.name(index); there {
				return fmt.Errorf("device %s: %w", dev, err)
			}
		}
	}
	return nil
}

// decodeFilters returns the program of a device. There is more than one filter only if somebody made another: one that
// is not ours makes the program differ from what is wanted, and attach refuses to stand beside it.
func (p *Provider) decodeFilters(dev string, f filters) netstate.Program {
	first := f.ours[0]
	o := netstate.Program{Dev: dev, Name: programOf(first)}
	var extra []string
	add := func(differs bool, format string, args ...any) {
		if differs {
			extra = append(extra, fmt.Sprintf(format, args...))
		}
	}
	add(first.Priority != filterPriority, "pref %d", first.Priority)
	add(first.Handle != filterHandle, "handle %#x", first.Handle)
	add(!first.DirectAction, "without direct-action")
	add(first.Protocol != unix.ETH_P_ALL, "protocol %#x", first.Protocol)
	add(first.Id != p.ids[o.Name], "another version (id %d, tag %s)", first.Id, first.Tag)
	add(len(f.ours) > 1, "and %d more", len(f.ours)-1)
	add(len(f.other) > 0, "beside %s", describe(f.other))
	o.Extra = strings.Join(extra, " ")
	return o
}

// attach puts a program on a device, in the place of any that it has.
func (p *Provider) attach(o netstate.Program) error {
	program := p.programs[string(o.Name)]
	if program == nil {
		return fmt.Errorf("there is no program %s", o.Name)
	}
	index, err := p.names.index(o.Dev)
	if err != nil {
		return err
	}
	kinds, err := p.qdiscs()
	if err != nil {
		return err
	}
	switch kind := kinds[index]; kind {
	case "clsact":
	case "":
		if err := p.addQdisc(index); err != nil {
			return err
		}
	default:
		return fmt.Errorf("device %s has a queueing discipline %s of somebody else, beside which there can be no clsact",
			o.Dev, kind)
	}
	f, err := p.filters(index)
	if err != nil {
		return err
	}
	if len(f.other) > 0 {
		return fmt.Errorf("device %s has filters of somebody else, which the fast path would pass by: %s", o.Dev,
			describe(f.other))
	}
	want := filter(index, o.Name)
	want.Fd = program.FD()
	if err := p.nl.FilterReplace(want); err != nil {
		return fmt.Errorf("attach the program %s: %w", o.Name, err)
	}
	for _, old := range f.ours {
		if old.Priority != filterPriority || old.Handle != filterHandle || old.Protocol != unix.ETH_P_ALL {
			if err := p.deleteFilter(old); err != nil {
				return err
			}
		}
	}
	return nil
}

// detach takes our programs from a device. The qdisc stays until Clean: the kernel drops what the device is to send
// while a qdisc comes or goes, also one for what comes in.
func (p *Provider) detach(o netstate.Program) error {
	index, err := p.names.index(o.Dev)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	kinds, err := p.qdiscs()
	if err != nil || kinds[index] != "clsact" {
		return err
	}
	_, err = p.deleteOurs(index)
	return err
}

// deleteOurs deletes our filters of a device, and returns how many of others there are.
func (s sockets) deleteOurs(index uint32) (others int, err error) {
	f, err := s.filters(index)
	if err != nil {
		return 0, err
	}
	for _, old := range f.ours {
		if err := s.deleteFilter(old); err != nil {
			return 0, err
		}
	}
	return len(f.other), nil
}

func (s sockets) deleteFilter(f *netlink.BpfFilter) error {
	if err := s.nl.FilterDel(f); err != nil && !absent(err) {
		return fmt.Errorf("delete the filter %s: %w", f.Name, err)
	}
	return nil
}

func clsact(index uint32) netlink.Qdisc {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: int(index), Parent: netlink.HANDLE_CLSACT,
		Handle: netlink.MakeHandle(0xffff, 0)}}
}

func filter(index uint32, name netstate.ProgramName) *netlink.BpfFilter {
	return &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: int(index), Parent: netlink.HANDLE_MIN_INGRESS,
		Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL}, Name: filterPrefix + string(name),
		DirectAction: true}
}

// describe names filters.
func describe(all []netlink.Filter) string {
	var texts []string
	for _, f := range all {
		side, name := "ingress", ""
		if f.Attrs().Parent == netlink.HANDLE_MIN_EGRESS {
			side = "egress"
		}
		if b, ok := f.(*netlink.BpfFilter); ok {
			name = " " + b.Name
		}
		texts = append(texts, fmt.Sprintf("%s %s pref %d%s", side, f.Type(), f.Attrs().Priority, name))
	}
	return strings.Join(texts, ", ")
}
