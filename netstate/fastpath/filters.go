package fastpath

import (
	"fmt"

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

// parents are the places of filters of the qdisc clsact.
var parents = []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS}

// filters are those of a device.
type filters struct {
	ours  []*netlink.BpfFilter
	other []string // of somebody else
}

// qdiscs returns by index of device what kind of qdisc is where packets come in: clsact, or ingress. It is empty for
// devices that are up and have none.
func (s sockets) qdiscs() (map[uint32]string, error) {
	return rtnl.Retry("queueing disciplines", func() (map[uint32]string, error) {
		kinds := map[uint32]string{}
		r := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
		r.AddData(&nl.TcMsg{Family: unix.AF_UNSPEC})
		err := s.bulk.List(r, func(m []byte) error {
			if len(m) < nl.SizeofTcMsg {
				return fmt.Errorf("a queueing discipline of %d bytes: want at least %d", len(m), nl.SizeofTcMsg)
			}
			msg := nl.DeserializeTcMsg(m)
			index := uint32(msg.Ifindex)
			if msg.Parent == netlink.HANDLE_INGRESS {
				kinds[index] = unix.ByteSliceToString(rtnl.Attribute(m, nl.SizeofTcMsg, nl.TCA_KIND))
			} else if _, known := kinds[index]; !known {
				kinds[index] = ""
			}
			return nil
		})
		return kinds, err
	})
}

// filters lists those of a device that has the qdisc clsact, at some of the parents.
func (s sockets) filters(index uint32, parents ...uint32) (f filters, err error) {
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: int(index)}}
	for _, parent := range parents {
		list, err := rtnl.Retry("filters", func() ([]netlink.Filter, error) { return s.nl.FilterList(link, parent) })
		if err != nil {
			return f, fmt.Errorf("list the filters: %w", err)
		}
		for _, filter := range list {
			b, ok := filter.(*netlink.BpfFilter)
			if ok && parent == netlink.HANDLE_MIN_INGRESS && ourFilter(b) {
				f.ours = append(f.ours, b)
			} else {
				f.other = append(f.other, describe(filter))
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

// decodeFilters says how filters of ours are not the one that cls_bpf should run. There is more than one only if somebody
// made another.
func (p *Provider) decodeFilters(ours []*netlink.BpfFilter) (name netstate.ProgramName, extra words) {
	first := ours[0]
	name = programOf(first)
	extra.add(first.Priority != filterPriority, "pref %d", first.Priority)
	extra.add(first.Handle != filterHandle, "handle %#x", first.Handle)
	extra.add(!first.DirectAction, "without direct-action")
	extra.add(first.Protocol != unix.ETH_P_ALL, "protocol %#x", first.Protocol)
	extra.add(first.Id != p.ids[name], "another version (id %d, tag %s)", first.Id, first.Tag)
	extra.add(len(ours) > 1, "and %d more", len(ours)-1)
	return name, extra
}

// putFilter has cls_bpf run a program, and deletes filters of ours that are elsewhere.
func (p *Provider) putFilter(index uint32, o netstate.Program, have attached) error {
	if have.qdisc == "" {
		if err := p.addQdisc(index); err != nil {
			return err
		}
	}
	want := filter(index, o.Name)
	want.Fd = p.programs[string(o.Name)].FD()
	if err := p.nl.FilterReplace(want); err != nil {
		return fmt.Errorf("attach the program %s: %w", o.Name, err)
	}
	for _, old := range have.ours {
		if old.Priority != filterPriority || old.Handle != filterHandle || old.Protocol != unix.ETH_P_ALL {
			if err := p.deleteFilter(old); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s sockets) deleteFilters(all []*netlink.BpfFilter) error {
	for _, f := range all {
		if err := s.deleteFilter(f); err != nil {
			return err
		}
	}
	return nil
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

// describe names a filter.
func describe(f netlink.Filter) string {
	side, name := "ingress", ""
	if f.Attrs().Parent == netlink.HANDLE_MIN_EGRESS {
		side = "egress"
	}
	if b, ok := f.(*netlink.BpfFilter); ok && b.Name != "" {
		name = " " + b.Name
	}
	return fmt.Sprintf("%s %s pref %d%s", side, f.Type(), f.Attrs().Priority, name)
}
