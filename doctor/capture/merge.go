package capture

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/twill-net/twill/packet"
)

// maxBlock is how many bytes a block of a stream may have: a packet with its comments.
const maxBlock = 2*packet.MaxFrame + 1<<16

// maxInterfaces is how many devices a stream may have.
const maxInterfaces = 1 << 14

// Merge writes what several captures write into one, as it comes: each stream is one section, whose interfaces become the
// file's. It returns when all streams have ended. about is a comment in the file.
func Merge(w io.Writer, about string, streams ...io.Reader) error {
	f, err := newFile(w, about)
	if err != nil {
		return err
	}
	if err := f.flush(); err != nil {
		return err
	}
	m := merger{file: f}
	errs := make([]error, len(streams))
	var group sync.WaitGroup
	for i, s := range streams {
		group.Go(func() { errs[i] = m.take(s) })
	}
	group.Wait()
	return errors.Join(append(errs, m.flush())...)
}

// merger writes the blocks of several streams.
type merger struct {
	mu   sync.Mutex
	file *file
}

// take copies a stream's blocks until its end. What a stream writes is a node's choice: it is bounded, and must be what Twill
// writes.
func (m *merger) take(stream io.Reader) error {
	from := bufio.NewReader(stream)
	var ids []int
	for first := true; ; first = false {
		kind, body, err := readBlock(from)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch {
		case first && kind == sectionBlock && bytes.HasPrefix(body, order.AppendUint32(nil, byteOrder)):
		case !first && kind == interfaceBlock && isInterface(body) && len(ids) < maxInterfaces:
			ids = append(ids, m.add(body))
		case !first && kind == packetBlock && isPacket(body) && int(order.Uint32(body)) < len(ids):
			order.PutUint32(body, uint32(ids[order.Uint32(body)]))
			m.write(kind, body)
		default:
			return fmt.Errorf("block %d of %d bytes: want a pcapng that twillctl capture writes", kind, len(body))
		}
		if from.Buffered() == 0 {
			if err := m.flush(); err != nil {
				return err
			}
		}
	}
}

// isInterface reports whether the body of an interface's block is one that describe writes.
func isInterface(body []byte) bool {
	const head = 8
	return len(body) >= head && hasOptions(body[head:], func(code uint16, value []byte) bool {
		return code == nameOption || code == descriptionOption || code == resolutionOption && bytes.Equal(value, nanoseconds)
	})
}

// isPacket reports whether the body of a packet's block holds as much of the packet as it says, and options that write writes.
func isPacket(body []byte) bool {
	const head = 20
	if len(body) < head || order.Uint32(body[12:]) > packet.MaxFrame {
		return false
	}
	end := head + int(order.Uint32(body[12:])+3)&^3
	return end <= len(body) && hasOptions(body[end:], func(code uint16, value []byte) bool {
		return code == commentOption || code == flagsOption && len(value) == 4
	})
}

// hasOptions reports whether a block ends with options that are allowed.
func hasOptions(b []byte, allowed func(code uint16, value []byte) bool) bool {
	for len(b) >= 4 {
		code, length := order.Uint16(b), int(order.Uint16(b[2:]))
		padded := 4 + (length+3)&^3
		if code == 0 {
			return length == 0 && len(b) == 4
		}
		if padded > len(b) || !allowed(code, b[4:4+length]) {
			return false
		}
		b = b[padded:]
	}
	return len(b) == 0
}

// add adds an interface, and returns its number in the file.
func (m *merger) add(body []byte) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.file.interfaces++
	_ = m.file.block(interfaceBlock, body, nil) // the error comes again with flush
	return m.file.interfaces - 1
}

func (m *merger) write(kind uint32, body []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.file.block(kind, body, nil) // the error comes again with flush
}

func (m *merger) flush() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.file.flush()
}

// readBlock reads a block: its kind, its length, what it holds and its length again.
func readBlock(r io.Reader) (kind uint32, body []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err // io.EOF between two blocks
	}
	kind, length := order.Uint32(head[:]), order.Uint32(head[4:])
	if length < 12 || length%4 != 0 || length > maxBlock {
		return 0, nil, fmt.Errorf("block %d of %d bytes: want 12 to %d bytes, in words of 4", kind, length, maxBlock)
	}
	rest := make([]byte, length-8)
	if _, err := io.ReadFull(r, rest); err != nil {
		return 0, nil, fmt.Errorf("half a block: %w", io.ErrUnexpectedEOF)
	}
	return kind, rest[:len(rest)-4], nil
}
