package kube

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/kubeclient"
)

// Pods that policies may be about. API servers before 1.28 cannot select by hostNetwork.
const (
	selectRunning = "status.phase!=Succeeded,status.phase!=Failed"
	selectPods    = selectRunning + ",spec.hostNetwork=false"
)

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// podClient returns a client for Pods, which are read as protobuf.
func podClient(api *kubeclient.Client) (*rest.RESTClient, error) {
	group := podResource.GroupVersion()
	scheme := newScheme(group)
	scheme.AddKnownTypeWithName(group.WithKind("Pod"), &pod{})
	return api.REST(group, func(cfg *rest.Config) {
		cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		cfg.AcceptContentTypes, cfg.ContentType = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	})
}

// podList is what the reflector takes for a list; its elements are on their way to the state.
type podList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []*entry
}

// DeepCopyObject implements runtime.Object.
func (l *podList) DeepCopyObject() runtime.Object { c := *l; return &c }

func (s *Source) podKind(to *state) kind {
	k, selector := kind{GroupVersionResource: podResource}, selectPods
	k.Example = &pod{}
	k.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.FieldSelector = selector
		list, err := s.listPods(ctx, o, &to.shared)
		if apierrors.IsBadRequest(err) && selector != selectRunning {
			selector, o.FieldSelector = selectRunning, selectRunning
			list, err = s.listPods(ctx, o, &to.shared)
		}
		return list, err
	}
	k.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.FieldSelector = selector
		return watchRequest(s.pods, k.Resource, o).Watch(ctx)
	}
	k.store = sink{
		put:    func(obj any) { to.putPod(obj.(*pod)) },
		remove: func(obj any) { to.removePod(obj.(*pod).UID) },
		replace: func(list []any) {
			all := make([]*entry, len(list))
			for i, obj := range list {
				all[i] = obj.(*entry)
			}
			to.replacePods(all)
		},
	}
	return k
}

// listPods reads a list while it arrives. Who does not keep its entries must release them.
func (s *Source) listPods(ctx context.Context, o metav1.ListOptions, with *shared) (*podList, error) {
	o.Limit = 0 // what is not held at once need not be asked for in pages
	body, err := request(s.pods, podResource.Resource, o).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	list := &podList{}
	err = list.read(body, with)
	if err != nil {
		for _, e := range list.Items {
			with.release(e)
		}
		return nil, fmt.Errorf("read the list: %w", err)
	}
	return list, nil
}

// A PodList's fields, and those of its metadata and its envelope, runtime.Unknown.
const (
	listMetadata, listItems = 1, 2
	listVersion             = 2
	envelopeRaw             = 2
)

// read reads a PodList as protobuf of Kubernetes.
func (l *podList) read(from io.Reader, with *shared) error {
	r := bufio.NewReaderSize(from, 64<<10)
	magic := []byte("k8s\x00")
	begin := make([]byte, len(magic))
	if _, err := io.ReadFull(r, begin); err != nil {
		return err
	}
	if !bytes.Equal(begin, magic) {
		return errors.New("it is no protobuf of Kubernetes")
	}
	var buffer []byte
	var p pod
	err := messages(r, func(number protowire.Number, size uint64) error {
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
						l.ResourceVersion = string(f.bytes)
					}
					return nil
				})
			case listItems:
				p = pod{template: p.template[:0]}
				if err := p.decode(buffer, with.text); err != nil {
					return err
				}
				l.Items = append(l.Items, with.entry(&p))
			}
			return nil
		})
		if err == nil && raw.N > 0 {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	if err == nil && l.ResourceVersion == "" {
		err = errors.New("it has no resource version")
	}
	return err
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
