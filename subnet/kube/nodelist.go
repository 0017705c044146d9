package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/twill-net/twill/internal/kubeclient"
)

// A Node has some 13 kB, most of them the names of images. A list of thousands is read as protobuf, where decoders skip
// what their types lack: as JSON it takes the API server and the agent a second longer.

// pageSize is how many whole Nodes are listed at a time: some 6 MB.
const pageSize = "500"

// nodes calls f with the metadata and the podCIDRs of every Node, and returns the list's resource version. The next page
// is on its way while the metadata of one is decoded.
func (c *client) nodes(ctx context.Context, f func(m *metav1.ObjectMeta, podCIDRs string)) (version string, err error) {
	pages := make(chan nodePage)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { defer close(pages); return c.nodePages(ctx, pages) })
	g.Go(func() error {
		for page := range pages {
			list, err := page.metadata()
			if err != nil {
				return fmt.Errorf("decode the list of nodes: %w", err)
			}
			version = list.ResourceVersion
			for i := range list.Items {
				f(&list.Items[i].ObjectMeta, page.specs[i].podCIDRs())
			}
		}
		return nil
	})
	return version, g.Wait()
}

// nodePages sends all pages.
func (c *client) nodePages(ctx context.Context, pages chan<- nodePage) error {
	for more := ""; ; {
		r := c.rest.Get().Resource("nodes").SetHeader("Accept", runtime.ContentTypeProtobuf).Param("limit", pageSize)
		if more != "" {
			r.Param("continue", more)
		}
		result := r.MaxRetries(0).Timeout(kubeclient.ListTimeout).Do(ctx)
		if err := result.Error(); err != nil {
			return err
		}
		body, err := result.Raw()
		if err != nil {
			return err
		}
		page, err := decodePage(body)
		if err != nil {
			return fmt.Errorf("decode the list of nodes: %w", err)
		}
		select {
		case pages <- page:
		case <-ctx.Done():
			return ctx.Err()
		}
		if more = page.more; more == "" {
			return nil
		}
	}
}

// nodePage is a NodeList, of which all but the metadata is decoded.
type nodePage struct {
	raw   []byte
	specs []nodeSpec
	more  string // the token of the next page, empty if there is none
}

// decodePage decodes a NodeList as far as PartialObjectMetadataList lacks it.
func decodePage(body []byte) (nodePage, error) {
	body, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !ok {
		return nodePage{}, errors.New("it is no protobuf of Kubernetes")
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(body); err != nil {
		return nodePage{}, err
	}
	message, err := nodeListType()
	if err != nil {
		return nodePage{}, err
	}
	list := dynamicpb.NewMessage(message)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(envelope.Raw, list); err != nil {
		return nodePage{}, err
	}
	page := nodePage{raw: envelope.Raw, more: get(get(list, "metadata").Message(), "continue").String()}
	items := get(list, "items").List()
	for i := range items.Len() {
		spec := get(items.Get(i).Message(), "spec").Message()
		s := nodeSpec{PodCIDR: get(spec, "podCIDR").String()}
		for all, k := get(spec, "podCIDRs").List(), 0; k < all.Len(); k++ {
			s.PodCIDRs = append(s.PodCIDRs, all.Get(k).String())
		}
		page.specs = append(page.specs, s)
	}
	return page, nil
}

// metadata decodes the Nodes' metadata, as many as the page has specs.
func (p nodePage) metadata() (list metav1.PartialObjectMetadataList, err error) {
	if err := list.Unmarshal(p.raw); err != nil {
		return list, err
	}
	if len(p.specs) != len(list.Items) {
		return list, fmt.Errorf("%d specs for %d nodes", len(p.specs), len(list.Items))
	}
	return list, nil
}

func get(m protoreflect.Message, field protoreflect.Name) protoreflect.Value {
	return m.Get(m.Descriptor().Fields().ByName(field))
}

// nodeListType returns NodeList with those fields that PartialObjectMetadataList lacks, as k8s.io/api/core/v1 numbers
// them.
var nodeListType = sync.OnceValues(func() (protoreflect.MessageDescriptor, error) {
	type descriptor = descriptorpb.FieldDescriptorProto
	field := func(name string, number int32, label descriptorpb.FieldDescriptorProto_Label, message string) *descriptor {
		f := &descriptor{Name: &name, Number: &number, Label: &label}
		if message == "" {
			f.Type = descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum()
		} else {
			f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), &message
		}
		return f
	}
	const one, many = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL, descriptorpb.FieldDescriptorProto_LABEL_REPEATED
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("k8s.io/api/core/v1/generated.proto"), Package: new("twill"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: new("NodeList"), Field: []*descriptor{
				field("metadata", 1, one, ".twill.ListMeta"), field("items", 2, many, ".twill.Node")}},
			{Name: new("ListMeta"), Field: []*descriptor{field("continue", 3, one, "")}},
			{Name: new("Node"), Field: []*descriptor{field("spec", 2, one, ".twill.NodeSpec")}},
			{Name: new("NodeSpec"), Field: []*descriptor{
				field("podCIDR", 1, one, ""), field("podCIDRs", 7, many, "")}},
		}}, nil)
	if err != nil {
		return nil, fmt.Errorf("describe a NodeList: %w", err)
	}
	return file.Messages().ByName("NodeList"), nil
})
