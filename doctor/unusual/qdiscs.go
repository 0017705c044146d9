package unusual

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	bpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// unusualQdiscs returns queueing disciplines that somebody attached, their filters, and BPF programs of devices. Those
// that the kernel gives a device by itself have no handle.
func (s *space) unusualQdiscs() (all []locate.Object, err error) {
	messages, err := s.list("queueing disciplines", unix.RTM_GETQDISC, &nl.TcMsg{Family: unix.AF_UNSPEC})
	for _, m := range messages {
		if len(m) < nl.SizeofTcMsg {
			return nil, fmt.Errorf("a queueing discipline of %d bytes: want at least %d", len(m), nl.SizeofTcMsg)
		}
		msg := nl.DeserializeTcMsg(m)
		if msg.Handle == 0 {
			continue
		}
		kind, dev := unix.ByteSliceToString(rtnl.Attribute(m, nl.SizeofTcMsg, nl.TCA_KIND)), s.names[int(msg.Ifindex)]
		where := hook(kind, msg.Parent)
		discipline := locate.Object{Kind: locate.Qdisc, Dev: dev, Part: kind + " " + where, Usual: "no such discipline",
			Text: fmt.Sprintf("%s: %s %x: %s", dev, kind, msg.Handle>>16, where),
			Fix:  fmt.Sprintf("tc qdisc del dev %s %s", dev, where)}
		var found []locate.Object
		fast := false
		for _, parent := range parents(kind, msg.Handle) {
			filters, ours, filterErr := s.filters(msg.Ifindex, parent)
			found, fast, err = append(found, filters...), fast || ours, errors.Join(err, filterErr)
		}
		if !fast {
			all = append(all, discipline)
		}
		all = append(all, found...)
	}
	programs, programErr := s.programs()
	return append(all, programs...), errors.Join(err, programErr)
}

// hook returns how tc names the place of a discipline.
func hook(kind string, parent uint32) string {
	switch parent {
	case netlink.HANDLE_ROOT:
		return "root"
	case netlink.HANDLE_INGRESS:
		return kind
	}
	return "parent " + handleText(parent)
}

// parents returns what filters of a discipline hang on.
func parents(kind string, handle uint32) []uint32 {
	if kind == "clsact" {
		return []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS}
	}
	return []uint32{handle}
}

// handleText returns a handle as tc prints it.
func handleText(handle uint32) string {
	if handle&0xffff == 0 {
		return fmt.Sprintf("%x:", handle>>16)
	}
	return fmt.Sprintf("%x:%x", handle>>16, handle&0xffff)
}

// filters returns those of one parent, but for the fast path's, and whether there are such.
func (s *space) filters(index int32, parent uint32) (all []locate.Object, fast bool, err error) {
	messages, err := s.list("filters", unix.RTM_GETTFILTER,
		&nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: index, Parent: parent})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil, false, nil // of a discipline without classes
	}
	for _, m := range messages {
		if len(m) < nl.SizeofTcMsg {
			return nil, false, fmt.Errorf("a filter of %d bytes: want at least %d", len(m), nl.SizeofTcMsg)
		}
		msg := nl.DeserializeTcMsg(m)
		options := rtnl.Attribute(m, nl.SizeofTcMsg, nl.TCA_OPTIONS)
		kind := unix.ByteSliceToString(rtnl.Attribute(m, nl.SizeofTcMsg, nl.TCA_KIND))
		hashTable := kind == "u32" && rtnl.Attribute(options, 0, nl.TCA_U32_SEL) == nil
		if msg.Handle == 0 || len(options) == 0 || hashTable {
			continue // a message about all filters of a priority
		}
		if kind == "bpf" && isFastPath(unix.ByteSliceToString(rtnl.Attribute(options, 0, nl.TCA_BPF_NAME))) {
			fast = true
			continue
		}
		o := s.filter(msg, kind, options)
		if !slices.Contains(all, o) {
			all = append(all, o)
		}
	}
	return all, fast, err
}

// isFastPath reports whether a filter, or a link's program behind "twill-", is the fast path's own. Its programs drop nothing, and the plan says if another's
// program has the name.
func isFastPath(name string) bool {
	return name == "twill-from_pod" || name == "twill-to_pod"
}

func (s *space) filter(msg *nl.TcMsg, kind string, options []byte) locate.Object {
	dev, where := s.names[int(msg.Ifindex)], "parent "+handleText(msg.Parent)
	switch msg.Parent {
	case netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_INGRESS & 0xffff0000:
		where = "ingress"
	case netlink.HANDLE_MIN_EGRESS:
		where = "egress"
	}
	var w words
	w.add(true, "%s: filter %s pref %d %s", dev, where, msg.Info>>16, kind)
	w = append(w, s.actions(kind, options)...)
	return locate.Object{Kind: locate.Qdisc, Dev: dev, Part: "filter " + where + " " + kind, Text: w.String(), Usual: "no such filter",
		Fix: fmt.Sprintf("tc filter del dev %s %s pref %d", dev, where, msg.Info>>16)}
}

// actionsOf are the attributes of filters that have their actions.
var actionsOf = map[string]uint16{"matchall": 2, "u32": nl.TCA_U32_ACT, "flower": 3, "bpf": 1, "basic": 3, "fw": 4,
	"route": 6, "cgroup": 1, "flow": 9}

// actions returns the kinds of a filter's actions, of the common ones with what they do.
func (s *space) actions(kind string, options []byte) (w words) {
	const actKind, actOptions, params = 1, 2, 2 // TCA_ACT_KIND, TCA_ACT_OPTIONS, TCA_GACT_PARMS and TCA_MIRRED_PARMS
	verdicts := map[int32]string{-1: "continue", 0: "pass", 1: "reclassify", 2: "drop", 3: "pipe", 7: "redirect", 8: "trap"}
	attribute, known := actionsOf[kind]
	if !known {
		return nil
	}
	for _, action := range rtnl.Attributes(rtnl.Attribute(options, 0, attribute)) {
		name := unix.ByteSliceToString(rtnl.Attribute(action, 0, actKind))
		p := rtnl.Attribute(action, 0, actOptions, params)
		const actionAt, mirrorAt, deviceAt, size = 8, 20, 24, 28
		switch {
		case name == "gact" && len(p) >= actionAt+4:
			w.add(true, "action %s", verdicts[int32(binary.NativeEndian.Uint32(p[actionAt:]))])
		case name == "mirred" && len(p) >= size:
			how := map[uint32]string{1: "egress redirect", 2: "egress mirror", 3: "ingress redirect", 4: "ingress mirror"}
			w.add(true, "action mirred %s dev %s", how[binary.NativeEndian.Uint32(p[mirrorAt:])],
				s.names[int(binary.NativeEndian.Uint32(p[deviceAt:]))])
		default:
			w.add(true, "action %s", name)
		}
	}
	return w
}

// attachments are the places of a device that BPF programs can be attached to.
var attachments = []struct {
	name string
	at   ebpf.AttachType
	kind string // of the device; empty: any
}{
	{"tcx ingress", ebpf.AttachTCXIngress, ""}, {"tcx egress", ebpf.AttachTCXEgress, ""},
	{"netkit primary", ebpf.AttachNetkitPrimary, "netkit"}, {"netkit peer", ebpf.AttachNetkitPeer, "netkit"},
}

// programs returns the BPF programs of devices. Older kernels know no such places.
func (s *space) programs() (all []locate.Object, err error) {
	for _, l := range s.links {
		for _, a := range attachments {
			if a.kind != "" && a.kind != l.kind {
				continue
			}
			result, err := bpflink.QueryPrograms(bpflink.QueryOptions{Target: l.index, Attach: a.at})
			switch {
			case errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.ENODEV):
				continue
			case err != nil:
				return all, fmt.Errorf("list the BPF programs of %s: %w", l.name, err)
			}
			for _, p := range result.Programs {
				if o, fast := program(l.name, a.name, p); !fast {
					all = append(all, o)
				}
			}
		}
	}
	return all, nil
}

// program describes a program, and reports whether it is the fast path's own.
func program(dev, place string, p bpflink.AttachedProgram) (o locate.Object, fast bool) {
	name := strconv.Itoa(int(p.ID))
	if opened, err := ebpf.NewProgramFromID(p.ID); err == nil {
		if info, err := opened.Info(); err == nil && info.Name != "" {
			name = info.Name
		}
		_ = opened.Close()
	}
	o = locate.Object{Kind: locate.Qdisc, Dev: dev, Part: place + " program", Usual: "no program",
		Text: fmt.Sprintf("%s: %s program %s", dev, place, name)}
	if id, ok := p.LinkID(); ok {
		o.Fix = fmt.Sprintf("bpftool link detach id %d", id)
		return o, place == "tcx ingress" && isFastPath("twill-"+name)
	}
	o.Fix = fmt.Sprintf("bpftool net detach %s dev %s", map[string]string{"tcx ingress": "tcx_ingress",
		"tcx egress": "tcx_egress", "netkit primary": "netkit_primary", "netkit peer": "netkit_peer"}[place], dev)
	return o, false
}
