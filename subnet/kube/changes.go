package kube

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of the messages WatchEvent, RawExtension and Status; see wire.go.
const (
	eventType, eventObject, extensionRaw = 1, 2, 1
	statusMessage, statusCode            = 3, 6
)

// The types of events.
const (
	added, modified, deleted = "ADDED", "MODIFIED", "DELETED"
	bookmark, failed         = "BOOKMARK", "ERROR"
)

// change is one event of a watch: added, modified, deleted or bookmark, of which the node has a version only.
type change struct {
	kind string
	*node
}

// changes reads a watch, in which the size of each event stands before it, in four bytes.
type changes struct {
	lean lean
	body io.Closer
	in   *bufio.Reader
	long []byte // an event that does not fit into the reader's buffer
}

func newChanges(d lean, body io.ReadCloser) *changes {
	return &changes{lean: d, body: body, in: bufio.NewReaderSize(body, 32<<10)}
}

// atOnce is how many events are handed on together.
const atOnce = 64

// batch waits for an event, and returns it with those that have come behind it. io.EOF: the API server has ended
// the watch, as it does after the time that it was given. An event of type ERROR is an answerError.
func (c *changes) batch() ([]change, error) {
	var all []change
	for len(all) == 0 || len(all) < atOnce && c.waits() {
		frame, err := c.frame()
		if err != nil {
			return nil, err
		}
		e, err := c.lean.change(frame)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// waits says whether a whole event has come already.
func (c *changes) waits() bool {
	if c.in.Buffered() < 4 {
		return false
	}
	head, _ := c.in.Peek(4)
	return c.in.Buffered()-4 >= int(binary.BigEndian.Uint32(head))
}

// frame is the next event, until the one after it.
func (c *changes) frame() ([]byte, error) {
	head, err := c.in.Peek(4)
	if err != nil {
		if len(head) > 0 {
			err = unexpected(err)
		}
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(head))
	if size > maxNode {
		return nil, fmt.Errorf("an event of %d bytes in the API server's watch: want at most %d", size, maxNode)
	}
	if 4+size <= c.in.Size() {
		all, err := c.in.Peek(4 + size)
		if err != nil {
			return nil, unexpected(err)
		}
		_, err = c.in.Discard(4 + size) // what was peeked stays until something is read
		return all[4:], err
	}
	if cap(c.long) < size {
		c.long = make([]byte, size)
	}
	_, _ = c.in.Discard(4)
	_, err = io.ReadFull(c.in, c.long[:size])
	return c.long[:size], unexpected(err)
}

// change reads a WatchEvent.
func (d lean) change(frame []byte) (change, error) {
	var e change
	var body []byte
	err := each(frame, func(number protowire.Number, content []byte) error {
		switch number {
		case eventType:
			e.kind = string(content)
		case eventObject:
			return each(content, func(number protowire.Number, content []byte) error {
				if number == extensionRaw {
					body = content
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	object, err := opened(body)
	switch {
	case err != nil:
		return e, err
	case e.kind == failed:
		s := readStatus(object)
		return e, &s
	}
	e.node, err = d.node(object)
	if err == nil && e.name == "" && e.kind != bookmark {
		err = errors.New("an event in the API server's watch is about an object without a name")
	}
	return e, err
}

// readStatus reads a Status as far as it can be read.
func readStatus(data []byte) (s answerError) {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			break
		}
		size := protowire.ConsumeFieldValue(number, kind, data[n:])
		if size < 0 {
			break
		}
		switch value := data[n : n+size]; {
		case number == statusMessage && kind == protowire.BytesType:
			content, _ := protowire.ConsumeBytes(value)
			s.message = string(content)
		case number == statusCode && kind == protowire.VarintType:
			code, _ := protowire.ConsumeVarint(value)
			s.code = int(code)
		}
		data = data[n+size:]
	}
	return s
}
