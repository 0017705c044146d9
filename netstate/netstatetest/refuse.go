package netstatetest

import (
	"math"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Refuse calls f on a thread on which the kernel refuses the system calls of these numbers with errno, and waits for
// it. Only f's own goroutine is on that thread, which ends with f.
func Refuse(t testing.TB, errno unix.Errno, f func(), numbers ...uint32) {
	t.Helper()
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: 0, Size: 4}} // of struct seccomp_data
	for _, n := range numbers {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: n, SkipTrue: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)})
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}))
	if err != nil || len(raw) > math.MaxUint16 {
		t.Fatalf("%d instructions, %v", len(raw), err)
	}
	filter := unix.SockFprog{Len: uint16(len(raw)), Filter: (*unix.SockFilter)(unsafe.Pointer(&raw[0]))}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock it
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("refuse system calls: %v", err)
	}
}
