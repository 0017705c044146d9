package faults

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/rootless"
)

// BreakChecksums gives the node a network card with a bug that many had: it finishes the checksum of a packet, but not
// of one within VXLAN. A lab's cable is a veth, on which checksums that are left to the NIC are never computed, and the
// kernel at the other end knows that. The cable's far end gets an XDP program that hands such packets on as a wire
// does, as nothing but bytes. Restore takes it back.
func BreakChecksums(l *lab.Lab, n *lab.Node, port int) error {
	if err := rootless.RefuseBPF("a network card that breaks checksums"); err != nil {
		return err
	}
	return l.Router().Do(func() error {
		// Frames in a CPU map are bytes: the kernel makes packets of them anew, with checksums that are to be verified.
		cpus, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.CPUMap, KeySize: 4, ValueSize: 4, MaxEntries: 1,
			Contents: []ebpf.MapKV{{Key: uint32(0), Value: uint32(512)}}})
		if err != nil {
			return fmt.Errorf("make a CPU map: %w", err)
		}
		defer cpus.Close()
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "broken_nic", Type: ebpf.XDP, License: "GPL",
			Instructions: brokenNIC(cpus, port)})
		if err != nil {
			return fmt.Errorf("load the program of a broken network card: %w", err)
		}
		defer program.Close()
		cable, err := netlink.LinkByName(n.Name)
		if err != nil {
			return err
		}
		return setXDP(cable, program.FD())
	})
}

// setXDP attaches a program to a veth device; -1 takes it off.
func setXDP(link netlink.Link, fd int) error {
	return netlink.LinkSetXdpFdWithFlags(link, fd, unix.XDP_FLAGS_DRV_MODE)
}

// restoreChecksums repairs all network cards.
func restoreChecksums() error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, link := range links {
		if xdp := link.Attrs().Xdp; xdp != nil && xdp.Attached {
			if err := setXDP(link, -1); err != nil {
				return fmt.Errorf("take the XDP program off %s: %w", link.Attrs().Name, err)
			}
		}
	}
	return nil
}

// header is where fields of a UDP datagram stand, over Ethernet and an IP header without options.
type header struct {
	etherType      int32
	protocol, addr int16 // of IP
	udp            int16
}

var headers = []header{{unix.ETH_P_IP, 23, 26, 34}, {unix.ETH_P_IPV6, 20, 22, 54}}

// brokenNIC hands on as bytes what is VXLAN and has a checksum of its own. In one that is left to the NIC as a whole
// stands the sum of the addresses, the protocol and the length alone: what is within that packet is complete, and this
// card does what is left.
func brokenNIC(cpus *ebpf.Map, port int) asm.Instructions {
	const packet, dataEnd, sum, value, carry = asm.R6, asm.R7, asm.R8, asm.R9, asm.R3
	load := func(offset int16) asm.Instructions {
		return asm.Instructions{asm.LoadMem(value, packet, offset, asm.Half), asm.HostTo(asm.BE, value, asm.Half)}
	}
	program := asm.Instructions{
		asm.LoadMem(packet, asm.R1, 0, asm.Word),  // xdp_md.data
		asm.LoadMem(dataEnd, asm.R1, 4, asm.Word), // xdp_md.data_end
	}
	const lengthAt, checksumAt, udpSize = 4, 6, 8
	for _, h := range headers {
		next := fmt.Sprintf("not_%x", h.etherType)
		program = append(program, asm.Mov.Reg(asm.R2, packet), asm.Add.Imm(asm.R2, int32(h.udp+udpSize)),
			asm.JGT.Reg(asm.R2, dataEnd, next))
		program = append(append(program, load(12)...), asm.JNE.Imm(value, h.etherType, next),
			asm.LoadMem(value, packet, h.protocol, asm.Byte), asm.JNE.Imm(value, unix.IPPROTO_UDP, next))
		program = append(append(program, load(h.udp+2)...), asm.JNE.Imm(value, int32(port), next))
		program = append(program, asm.Mov.Imm(sum, unix.IPPROTO_UDP))
		for offset := h.addr; offset < h.udp; offset += 2 {
			program = append(append(program, load(offset)...), asm.Add.Reg(sum, value))
		}
		program = append(append(program, load(h.udp+lengthAt)...), asm.Add.Reg(sum, value))
		for range 2 {
			program = append(program, asm.Mov.Reg(carry, sum), asm.RSh.Imm(carry, 16), asm.And.Imm(sum, 0xffff),
				asm.Add.Reg(sum, carry))
		}
		program = append(append(program, load(h.udp+checksumAt)...), asm.JNE.Reg(value, sum, "broken"),
			asm.Mov.Imm(asm.R0, xdpPass).WithSymbol(next))
	}
	return append(program, asm.Mov.Imm(asm.R0, xdpPass), asm.Return(),
		asm.LoadMapPtr(asm.R1, cpus.FD()).WithSymbol("broken"), asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R3, xdpPass),
		asm.FnRedirectMap.Call(), asm.Return())
}

const xdpPass = 2 // XDP_PASS, which x/sys/unix does not have
