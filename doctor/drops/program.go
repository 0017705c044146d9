package drops

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf/asm"
)

// What the program writes for each packet, on its stack and then into the ring: offsets in bytes, in the machine's
// byte order.
const (
	atLocation = 0  // uint64: the address in the kernel's code
	atReason   = 8  // uint32: enum skb_drop_reason
	atNetns    = 12 // uint32: inode number of the namespace
	atTime     = 16 // uint64: nanoseconds of CLOCK_MONOTONIC
	atDev      = 24 // 16 bytes: the device's name
	atData     = 40
	dataSize   = 128 // of the packet from its network header on: enough for IPv6 in VXLAN in IPv6
	eventSize  = atData + dataSize
	atScratch  = eventSize // uint64, not part of the event
	frameSize  = atScratch + 8
)

// Where a packet's IP header can be, counted from the network header: there, or behind what encapsulates it (ipip;
// flannel's udp; VXLAN with its Ethernet header; each over IPv4 and IPv6).
const ip4, ip6, udp, vxlan, ethernet = 20, 40, 8, 8, 14

var innerAt = []int{0, ip4, ip4 + udp, ip4 + udp + vxlan + ethernet, ip6 + udp + vxlan + ethernet}

// filter says which packets are reported: those between two addresses of the same family, in either direction and
// encapsulated or not, and those in some namespaces, by inode number. What is not said means all.
type filter struct {
	a, b       netip.Addr
	namespaces []uint32
}

// program returns the program for the raw tracepoint kfree_skb, whose arguments are the packet, the place in the
// kernel's code and, since Linux 5.17, the reason. A raw tracepoint needs no tracefs, which containers do not have.
// It writes an event for each packet that the filter lets through.
func program(o offsets, ring int, f filter) asm.Instructions {
	p := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1), // the arguments
		asm.LoadMem(asm.R7, asm.R6, 0, asm.DWord),
		asm.Mov.Imm(asm.R8, 0),
	}
	for at := 0; at < frameSize; at += 8 { // the verifier wants the stack written
		p = append(p, asm.StoreMem(asm.RFP, slot(at), asm.R8, asm.DWord))
	}
	p = append(p, arguments()...)
	p = append(p, data(o)...)
	if f.a.IsValid() {
		p = append(p, matching(f.a, f.b)...)
	}
	p = append(p, where(o)...)
	p = append(p, within(f.namespaces)...)
	return append(p,
		asm.LoadMapPtr(asm.R1, ring),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, int32(slot(0))),
		asm.Mov.Imm(asm.R3, eventSize),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
		asm.Return(),
	)
}

// slot returns the offset of a place of the event from the frame pointer.
func slot(at int) int16 { return int16(at - frameSize) }

// read reads size bytes from the address in R3 plus off into a place of the event. What cannot be read becomes zero.
func read(to, size, off int) asm.Instructions {
	return asm.Instructions{
		asm.Add.Imm(asm.R3, int32(off)),
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, int32(slot(to))),
		asm.Mov.Imm(asm.R2, int32(size)),
		asm.FnProbeReadKernel.Call(),
	}
}

func arguments() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R8, asm.R6, 8, asm.DWord), asm.StoreMem(asm.RFP, slot(atLocation), asm.R8, asm.DWord),
		asm.LoadMem(asm.R8, asm.R6, 16, asm.DWord), asm.StoreMem(asm.RFP, slot(atReason), asm.R8, asm.Word),
		asm.FnKtimeGetNs.Call(), asm.StoreMem(asm.RFP, slot(atTime), asm.R0, asm.DWord),
	}
}

// data reads the packet: head plus network_header is where its IP header is.
func data(o offsets) asm.Instructions {
	p := append(asm.Instructions{asm.Mov.Reg(asm.R3, asm.R7)}, read(atScratch, 2, o.network)...)
	p = append(p, asm.LoadMem(asm.R8, asm.RFP, slot(atScratch), asm.Half), asm.Mov.Reg(asm.R3, asm.R7))
	p = append(p, read(atScratch, 8, o.head)...)
	p = append(p, asm.LoadMem(asm.R3, asm.RFP, slot(atScratch), asm.DWord), asm.Add.Reg(asm.R3, asm.R8))
	return append(p, read(atData, dataSize, 0)...)
}

// matching goes on to "match" when the addresses are at one of the places, else to the end.
func matching(a, b netip.Addr) asm.Instructions {
	var p asm.Instructions
	src := 8 // of IPv6's header
	if a.Is4() {
		src = 12
	}
	for i, inner := range innerAt {
		for j, pair := range [][]byte{append(a.AsSlice(), b.AsSlice()...), append(b.AsSlice(), a.AsSlice()...)} {
			name := fmt.Sprintf("not%d.%d", i, j)
			for k := 0; k < len(pair); k += 2 { // a VXLAN's inner header is at no multiple of four
				half := int32(binary.NativeEndian.Uint16(pair[k:]))
				p = append(p, asm.LoadMem(asm.R8, asm.RFP, slot(atData+inner+src+k), asm.Half), asm.JNE.Imm(asm.R8, half, name))
			}
			p = append(p, asm.Ja.Label("match"), asm.Mov.Imm(asm.R8, 0).WithSymbol(name))
		}
	}
	return append(p, asm.Ja.Label("end"))
}

// where reads the device that the packet is on, and the namespace of the device, or of the socket if there is no
// device.
func where(o offsets) asm.Instructions {
	p := append(asm.Instructions{asm.Mov.Reg(asm.R3, asm.R7).WithSymbol("match")}, read(atScratch, 8, o.dev)...)
	p = append(p, asm.LoadMem(asm.R8, asm.RFP, slot(atScratch), asm.DWord), asm.JEq.Imm(asm.R8, 0, "socket"),
		asm.Mov.Reg(asm.R3, asm.R8))
	p = append(p, read(atDev, 16, o.devName)...)
	p = append(p, asm.Mov.Reg(asm.R3, asm.R8), asm.Ja.Label("device"), asm.Mov.Reg(asm.R3, asm.R7).WithSymbol("socket"))
	p = append(p, read(atScratch, 8, o.sk)...)
	p = append(p, asm.LoadMem(asm.R3, asm.RFP, slot(atScratch), asm.DWord))
	p = append(p, read(atScratch, 8, o.skNet)...)
	p = append(p, asm.Ja.Label("namespace"))
	net := read(atScratch, 8, o.devNet)
	net[0] = net[0].WithSymbol("device")
	p = append(p, net...)
	p = append(p, asm.LoadMem(asm.R3, asm.RFP, slot(atScratch), asm.DWord).WithSymbol("namespace"))
	return append(p, read(atNetns, 4, o.inum)...)
}

// within goes to the end unless the packet is in one of the namespaces. None means all.
func within(namespaces []uint32) asm.Instructions {
	if len(namespaces) == 0 {
		return nil
	}
	p := asm.Instructions{asm.LoadMem(asm.R8, asm.RFP, slot(atNetns), asm.Word)}
	for _, inode := range namespaces {
		p = append(p, asm.JEq.Imm32(asm.R8, int32(inode), "within"))
	}
	return append(p, asm.Ja.Label("end"), asm.Mov.Imm(asm.R8, 0).WithSymbol("within"))
}
