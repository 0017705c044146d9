package drops

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// offsets locate what the program reads in the kernel's structs, in bytes. They differ between versions and
// configurations; the kernel's own type information (BTF) has them.
type offsets struct {
	head, network, dev, sk int // in struct sk_buff
	devName, devNet        int // in struct net_device
	skNet                  int // in struct sock
	inum                   int // in struct net: the number of the namespace, as stat(2) shows it
}

// kernelTypes reads the offsets and the reasons' names from the kernel's type information.
func kernelTypes() (o offsets, reasons map[uint32]string, err error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return o, nil, fmt.Errorf("read the kernel's type information (/sys/kernel/btf/vmlinux): %w", err)
	}
	for _, want := range []struct {
		to   *int
		path string // "struct member member …"
	}{
		{&o.head, "sk_buff head"}, {&o.network, "sk_buff network_header"}, {&o.dev, "sk_buff dev"}, {&o.sk, "sk_buff sk"},
		{&o.devName, "net_device name"}, {&o.devNet, "net_device nd_net net"}, {&o.skNet, "sock __sk_common skc_net net"},
		{&o.inum, "net ns inum"},
	} {
		if *want.to, err = offset(spec, strings.Fields(want.path)); err != nil {
			return o, nil, err
		}
	}
	reasons, err = reasonNames(spec)
	return o, reasons, err
}

func offset(spec *btf.Spec, path []string) (int, error) {
	var s *btf.Struct
	if err := spec.TypeByName(path[0], &s); err != nil {
		return 0, fmt.Errorf("struct %s in the kernel's type information: %w", path[0], err)
	}
	var at btf.Type = s
	sum := btf.Bits(0)
	for _, name := range path[1:] {
		m, ok := member(at, name)
		if !ok {
			return 0, fmt.Errorf("struct %s of this kernel has no %s", path[0], strings.Join(path[1:], "."))
		}
		sum += m.Offset
		at = btf.UnderlyingType(m.Type)
	}
	return int(sum.Bytes()), nil
}

// member finds one by its name, also in structs and unions without a name; Offset is from the beginning of all.
func member(t btf.Type, name string) (btf.Member, bool) {
	for _, m := range members(t) {
		if m.Name == name {
			return m, true
		}
		if m.Name != "" {
			continue
		}
		if inner, ok := member(btf.UnderlyingType(m.Type), name); ok {
			inner.Offset += m.Offset
			return inner, true
		}
	}
	return btf.Member{}, false
}

func members(t btf.Type) []btf.Member {
	switch t := t.(type) {
	case *btf.Struct:
		return t.Members
	case *btf.Union:
		return t.Members
	}
	return nil
}

// reasonNames returns the kernel's names of reasons without their common prefix: NETFILTER_DROP.
func reasonNames(spec *btf.Spec) (map[uint32]string, error) {
	var e *btf.Enum
	if err := spec.TypeByName("skb_drop_reason", &e); err != nil {
		return nil, fmt.Errorf("this kernel gives no reasons for dropped packets, which begin with Linux 5.17: %w", err)
	}
	names := map[uint32]string{}
	for _, v := range e.Values {
		names[uint32(v.Value)] = strings.TrimPrefix(strings.TrimPrefix(v.Name, "SKB_DROP_REASON_"), "SKB_")
	}
	return names, nil
}
