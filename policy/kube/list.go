package kube

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// A list's fields, and those of its metadata and its envelope, runtime.Unknown.
const (
	listMetadata, listItems = 1, 2
	listVersion             = 2
	envelopeRaw             = 2
)

// readList reads a list as protobuf of Kubernetes, and calls f with each of its items, whose bytes are f's only until it
// returns. It returns the list's resource version.
func readList(from io.Reader, f func(item []byte) error) (version string, err error) {
	r := bufio.NewReaderSize(from, 64<<10)
	magic := []byte("k8s\x00")
	begin := make([]byte, len(magic))
	if _, err := io.ReadFull(r, begin); err != nil {
		return "", err
	}
	if !bytes.Equal(begin, magic) {
		return "", errors.New("it is no protobuf of Kubernetes")
	}
	var buffer []byte
	err = messages(r, func(number protowire.Number, size uint64) error {
		if number != envelopeRaw {
			_, err := readFull(r, nil, size)
			return err
		}
		raw := &io.LimitedReader{R: r, N: int64(size)}
		items := bufio.NewReaderSize(raw, 64<<10)
		err := messages(items, func(number protowire.Number, size uint64) (err error) {
			if buffer, err = readFull(items, buffer, size); err != nil {
				return err
			}
			switch number {
			case listMetadata:
				return fields(buffer, func(f field) error {
					if f.number == listVersion {
						version = string(f.bytes)
					}
					return nil
				})
			case listItems:
				return f(buffer)
			}
			return nil
		})
		if err == nil && raw.N > 0 {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	if err == nil && version == "" {
		err = errors.New("it has no resource version")
	}
	return version, err
}

// messages calls f with the number and the size of each field of a message, until the reader ends. F reads the field,
// which must have bytes.
func messages(r *bufio.Reader, f func(number protowire.Number, size uint64) error) error {
	for {
		tag, err := binary.ReadUvarint(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		number, kind := protowire.DecodeTag(tag)
		if kind != protowire.BytesType {
			return fmt.Errorf("field %d has no bytes", number)
		}
		size, err := binary.ReadUvarint(r)
		if err != nil {
			return fmt.Errorf("field %d: %w", number, err)
		}
		if err := f(number, size); err != nil {
			return err
		}
	}
}

// maxObject is more than the API server takes for one object.
const maxObject = 16 << 20

// readFull reads size bytes, into the buffer if it has room.
func readFull(r io.Reader, buffer []byte, size uint64) ([]byte, error) {
	if size > maxObject {
		return buffer, fmt.Errorf("an object has %d bytes", size)
	}
	if uint64(cap(buffer)) < size {
		buffer = make([]byte, size)
	}
	buffer = buffer[:size]
	_, err := io.ReadFull(r, buffer)
	return buffer, err
}
