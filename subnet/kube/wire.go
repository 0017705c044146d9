package kube

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A Node is some 13 kB, most of them the names of images, of which the store wants none. So a list, of which clusters
// have 60 MB, is read as it comes, and of each Node only the fields that a record has. The numbers are those of the
// messages in k8s.io/api/core/v1/generated.proto and k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto.
const (
	unknownRaw = 2 // of runtime.Unknown, which is around every object

	listMeta, listItem                  = 1, 2
	nodeMeta, nodeSpec, nodeStatus      = 1, 2, 3
	specPodCIDR, specPodCIDRs           = 1, 7
	metaName, metaUID, metaVersion      = 1, 5, 6
	metaCreated, metaAnnotations        = 8, 12
	timeSeconds, entryKey, entryContent = 1, 1, 2
)

// envelope is before every object that the API server sends as protobuf.
const envelope = "k8s\x00"

// maxNode is more than etcd stores of one object, in bytes.
const maxNode = 16 << 20

// lean reads Nodes without what the store does not want.
type lean struct {
	prefix string // of the annotations to keep
	self   string // the node whose conditions are wanted
}

// list reads a NodeList as the API server sends it.
func (d lean) list(body io.Reader) (*corev1.NodeList, error) {
	r := &frames{Reader: bufio.NewReaderSize(body, 64<<10)}
	size, err := r.open()
	if err != nil {
		return nil, err
	}
	list := &corev1.NodeList{}
	for end := r.read + size; r.read < end; {
		number, err := r.field()
		if err != nil {
			return nil, err
		}
		switch number {
		case listMeta:
			err = list.ListMeta.Unmarshal(r.content)
		case listItem:
			var n *corev1.Node
			n, err = d.node(r.content)
			list.Items = append(list.Items, *n)
		}
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// one reads a Node as the API server sends it.
func (d lean) one(body []byte) (*corev1.Node, error) {
	r := &frames{Reader: bufio.NewReader(strings.NewReader(string(body)))}
	size, err := r.open()
	if err != nil {
		return nil, err
	}
	raw := make([]byte, min(size, int64(len(body))))
	if _, err := io.ReadFull(r, raw); err != nil {
		return nil, err
	}
	return d.node(raw)
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

// node reads a message Node.
func (d lean) node(data []byte) (*corev1.Node, error) {
	n := &corev1.Node{}
	var status []byte
	err := each(data, func(number protowire.Number, content []byte) error {
		switch number {
		case nodeMeta:
			return d.meta(content, &n.ObjectMeta)
		case nodeSpec:
			return spec(content, &n.Spec)
		case nodeStatus:
			status = content
		}
		return nil
	})
	if err == nil && n.Name == d.self {
		var s corev1.NodeStatus
		err = s.Unmarshal(status)
		n.Status.Conditions = s.Conditions
	}
	return n, err
}

func (d lean) meta(data []byte, m *metav1.ObjectMeta) error {
	return each(data, func(number protowire.Number, content []byte) error {
		switch number {
		case metaName:
			m.Name = string(content)
		case metaUID:
			m.UID = types.UID(content)
		case metaVersion:
			m.ResourceVersion = string(content)
		case metaCreated:
			return created(content, m)
		case metaAnnotations:
			return d.annotation(content, m)
		}
		return nil
	})
}

// created reads a Time, whose seconds are the only number among the fields here.
func created(data []byte, m *metav1.ObjectMeta) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if number == timeSeconds && kind == protowire.VarintType {
			seconds, n := protowire.ConsumeVarint(data)
			m.CreationTimestamp = metav1.NewTime(time.Unix(int64(seconds), 0))
			return protowire.ParseError(min(n, 0))
		}
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
	}
	return nil
}

func (d lean) annotation(data []byte, m *metav1.ObjectMeta) error {
	var key, value string
	err := each(data, func(number protowire.Number, content []byte) error {
		switch {
		case number == entryKey:
			key = string(content)
		case number == entryContent && strings.HasPrefix(key, d.prefix):
			value = string(content)
		}
		return nil
	})
	if strings.HasPrefix(key, d.prefix) {
		metav1.SetMetaDataAnnotation(m, key, value)
	}
	return err
}

func spec(data []byte, s *corev1.NodeSpec) error {
	return each(data, func(number protowire.Number, content []byte) error {
		switch number {
		case specPodCIDR:
			s.PodCIDR = string(content)
		case specPodCIDRs:
			s.PodCIDRs = append(s.PodCIDRs, string(content))
		}
		return nil
	})
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
