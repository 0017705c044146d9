package kube

import (
	"context"
	"fmt"
	"io"

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

// coreClient returns a client for Pods and Nodes, which are read as protobuf.
func coreClient(api *kubeclient.Client) (*rest.RESTClient, error) {
	group := podResource.GroupVersion()
	scheme := newScheme(group)
	scheme.AddKnownTypeWithName(group.WithKind("Pod"), &pod{})
	scheme.AddKnownTypeWithName(group.WithKind("Node"), &node{})
	return api.REST(group, func(cfg *rest.Config) {
		cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		cfg.AcceptContentTypes, cfg.ContentType = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	})
}

func (s *Source) podKind(to *state) kind {
	k, selector := kind{GroupVersionResource: podResource}, selectPods
	k.Example = &pod{}
	k.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.FieldSelector = selector
		all, err := s.listPods(ctx, o, &to.shared)
		if apierrors.IsBadRequest(err) && selector != selectRunning {
			selector, o.FieldSelector = selectRunning, selectRunning
			all, err = s.listPods(ctx, o, &to.shared)
		}
		return all, err
	}
	k.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.FieldSelector = selector
		return watchRequest(s.core, k.Resource, o).Watch(ctx)
	}
	k.store = sink[*pod, *entry]{to.putPod, func(p *pod) { to.removePod(p.UID) }, to.replacePods}
	return k
}

// listPods reads a list while it arrives. Who does not keep its entries must release them.
func (s *Source) listPods(ctx context.Context, o metav1.ListOptions, with *shared) (*list[*entry], error) {
	o.Limit = 0 // what is not held at once need not be asked for in pages
	body, err := request(s.core, podResource.Resource, o).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return readPods(body, with)
}

// readPods reads a PodList.
func readPods(from io.Reader, with *shared) (*list[*entry], error) {
	var p pod
	all := &list[*entry]{}
	version, err := readList(from, func(item []byte) error {
		p = pod{template: p.template[:0]}
		if err := p.decode(item, with.text); err != nil {
			return err
		}
		all.Items = append(all.Items, with.entry(&p))
		return nil
	})
	if err != nil {
		for _, e := range all.Items {
			with.release(e)
		}
		return nil, fmt.Errorf("read the list: %w", err)
	}
	all.ResourceVersion = version
	return all, nil
}
