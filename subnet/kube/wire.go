package kube

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// A Node is some 13 kB, most of them the names of images, of which the store wants none. So a list, of which clusters
// have 60 MB, is read as it comes, and of each Node only the fields that a record has. The numbers are those of the
// messages in k8s.io/api/core/v1/generated.proto and k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto.
const (
	unknownRaw = 2 // of runtime.Unknown, which is around every object

	listMeta, listItem, listVersion, listContinue = 1, 2, 2, 3
)

// envelope is before every object that the API server sends as protobuf.
const envelope = "k8s\x00"

// maxNode is more than etcd stores of one object, in bytes.
const maxNode = 16 << 20

// nodeList is a NodeList, or one of metadata.
type nodeList struct {
	version string // metadata.resourceVersion: a watch goes on from it
	more    string // metadata.continue: asks for the next page; empty: this is the last
	items   []*node
}

// list reads a list of Nodes or of their metadata, which have the same numbers, as the API server sends it.
func (d lean) list(body io.Reader) (*nodeList, error) {
	r := &frames{Reader: bufio.NewReaderSize(body, 64<<10)}
	size, err := r.open()
	if err != nil {
		return nil, err
	}
	list := &nodeList{}
	for end := r.read + size; r.read < end; {
		number, err := r.field()
		if err != nil {
			return nil, err
		}
		switch number {
		case listMeta:
			err = each(r.content, func(number protowire.Number, content []byte) error {
				switch number {
				case listVersion:
					list.version = string(content)
				case listContinue:
					list.more = string(content)
				}
				return nil
			})
		case listItem:
			var n *node
			n, err = d.node(r.content)
			list.items = append(list.items, n)
		}
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// one reads a Node as the API server sends it.
func (d lean) one(body []byte) (*node, error) {
	object, err := opened(body)
	if err != nil {
		return nil, err
	}
	return d.node(object)
}

// opened is the object inside of the envelope.
func opened(body []byte) ([]byte, error) {
	if len(body) < len(envelope) || string(body[:len(envelope)]) != envelope {
		return nil, fmt.Errorf("the API server's answer begins with %.8q and not as protobuf does", body)
	}
	var object []byte
	err := each(body[len(envelope):], func(number protowire.Number, content []byte) error {
		if number == unknownRaw {
			object = content
		}
		return nil
	})
	return object, err
}

// frames reads the fields of a message that is too large to be held.
type frames struct {
	*bufio.Reader
	read    int64  // bytes as yet
	content []byte // of the last field, until the next one
}

// open reads up to the object inside of the envelope, and returns its size.
func (r *frames) open() (int64, error) {
	var magic [len(envelope)]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil || string(magic[:]) != envelope {
		return 0, fmt.Errorf("the API server's answer begins with %q and not as protobuf does: %w", magic, err)
	}
	for {
		number, size, err := r.head()
		if err != nil || number == unknownRaw {
			return size, err
		}
		if err := r.take(size); err != nil {
			return 0, err
		}
	}
}

// field reads one whole field into content.
func (r *frames) field() (protowire.Number, error) {
	number, size, err := r.head()
	if err != nil {
		return 0, err
	}
	return number, r.take(size)
}

// head reads a field's number and the size of its content; all fields here have one.
func (r *frames) head() (protowire.Number, int64, error) {
	tag, err := r.varint()
	if err != nil {
		return 0, 0, err
	}
	number, kind := protowire.DecodeTag(tag)
	if kind != protowire.BytesType {
		return 0, 0, fmt.Errorf("field %d of the API server's answer has the wire type %d: want %d", number, kind, protowire.BytesType)
	}
	size, err := r.varint()
	return number, int64(size), err
}

func (r *frames) varint() (n uint64, err error) {
	for shift := 0; shift < 64; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, unexpected(err)
		}
		r.read++
		if n |= uint64(b&0x7f) << shift; b < 0x80 {
			return n, nil
		}
	}
	return 0, errors.New("a number in the API server's answer has more than 64 bits")
}

func (r *frames) take(size int64) error {
	if size < 0 || size > maxNode {
		return fmt.Errorf("an object of %d bytes in the API server's answer: want at most %d", size, maxNode)
	}
	if int64(cap(r.content)) < size {
		r.content = make([]byte, size)
	}
	r.content = r.content[:size]
	r.read += size
	_, err := io.ReadFull(r, r.content)
	return unexpected(err)
}

// unexpected makes an end in the middle what it is.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// each calls do with every field of a message that has a content; numbers it passes over.
func each(data []byte, do func(protowire.Number, []byte) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			return protowire.ParseError(n)
		}
		if kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(data)
			if err := do(number, content); err != nil {
				return err
			}
		}
		data = data[n:]
	}
	return nil
}
