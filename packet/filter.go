package packet

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// OnlyICMP keeps all frames but those of ICMP and ICMPv6 without extension headers from the Tap, in the kernel: on a busy
// node others would be too many. Devices without Ethernet headers are not seen.
func (t *Tap) OnlyICMP() error {
	const etherType, protocol4, protocol6 = 12, 14 + 9, 14 + 6
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: etherType, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherIPv4, SkipFalse: 2},
		bpf.LoadAbsolute{Off: protocol4, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: protoICMP, SkipTrue: 3, SkipFalse: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherIPv6, SkipFalse: 3},
		bpf.LoadAbsolute{Off: protocol6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: protoV6, SkipFalse: 1},
		bpf.RetConstant{Val: MaxFrame},
		bpf.RetConstant{},
	})
	if err != nil {
		return fmt.Errorf("assemble a filter of packets: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
	err = unix.SetsockoptSockFprog(t.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
	runtime.KeepAlive(filter)
	if err != nil {
		return fmt.Errorf("filter packets: %w", err)
	}
	return nil
}
