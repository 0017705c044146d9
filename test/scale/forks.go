package scale

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Forks counts the processes that one process starts, by the kernel's process connector (linux/cn_proc.h):
// struct cn_msg with the connector's name (1, 1), and in it struct proc_event. Both are in the machine's byte order.
type Forks struct {
	conn  *netlink.Conn
	count atomic.Int64
}

// The sizes of struct cn_msg and of struct proc_event before its union, and two of its constants.
const (
	sizeofCnMsg, sizeofEvent        = 20, 16
	connectorName                   = 1 // CN_IDX_PROC and CN_VAL_PROC
	procListen, procFork     uint32 = 1, 1
)

// CountForks begins to count what pid starts; its threads do not count. It needs root in the machine's first
// namespaces.
func CountForks(pid int) (*Forks, error) {
	conn, err := netlink.Dial(unix.NETLINK_CONNECTOR, &netlink.Config{Groups: connectorName})
	if err != nil {
		return nil, fmt.Errorf("subscribe to the kernel's processes: %w", err)
	}
	listen := make([]byte, sizeofCnMsg+4)
	binary.NativeEndian.PutUint32(listen, connectorName)
	binary.NativeEndian.PutUint32(listen[4:], connectorName)
	binary.NativeEndian.PutUint16(listen[16:], 4)
	binary.NativeEndian.PutUint32(listen[sizeofCnMsg:], procListen)
	if _, err := conn.Send(netlink.Message{Header: netlink.Header{Type: netlink.Done}, Data: listen}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("subscribe to the kernel's processes: %w", err)
	}
	f := &Forks{conn: conn}
	go f.receive(uint32(pid))
	return f, nil
}

// receive ends when the connection is closed.
func (f *Forks) receive(pid uint32) {
	for {
		msgs, err := f.conn.Receive()
		if err != nil {
			return
		}
		for _, m := range msgs {
			if len(m.Data) < sizeofCnMsg+sizeofEvent+16 {
				continue
			}
			event := m.Data[sizeofCnMsg:]
			parent, child := binary.NativeEndian.Uint32(
				event[sizeofEvent+4:],
			), binary.NativeEndian.Uint32(
				event[sizeofEvent+12:],
			)
			if binary.NativeEndian.Uint32(event) == procFork && parent == pid && child != pid {
				f.count.Add(1)
			}
		}
	}
}

// Count is how many there were.
func (f *Forks) Count() int { return int(f.count.Load()) }

// Close ends the counting.
func (f *Forks) Close() error { return f.conn.Close() }
