package kube

import (
	"context"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/twill-net/twill/internal/kubeclient"
)

// reflectLeases keeps c in sync with the published Lease objects until ctx is done.
func (s *Store) reflectLeases(ctx context.Context, c *leaseObjects) {
	kubeclient.Reflect(ctx, kubeclient.Reflection{
		Name: "leases", Example: &metav1.PartialObjectMetadata{},
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return s.listLeases(ctx, c, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.watchLeases(ctx, c, o)
		},
	}, c)
}

// published selects the Lease objects that are published.
func (a annotations) published() string { return labels.Set{a.managed: "true"}.String() }

func (s *Store) listLeases(
	ctx context.Context, c *leaseObjects, o metav1.ListOptions,
) (*metav1.PartialObjectMetadataList, error) {
	o.LabelSelector = s.annotations.published()
	if o.ResourceVersion == "0" || kubeclient.Older(string(c.revision), o.ResourceVersion) {
		o.ResourceVersion = "" // as etcd has it: an API server that lags behind would miss peers
	}
	limited, cancel := context.WithTimeout(ctx, kubeclient.ListTimeout)
	defer cancel()
	page, err := s.api.Metadata.Resource(leasesResource).Namespace(s.leaseSpace).List(limited, o)
	if err = kubeclient.Explain("list", "leases in namespace "+s.leaseSpace, err); err != nil {
		s.reportWatch(ctx, c.records, taskWatchLeases, err)
		c.setForbidden(kubeclient.IsTerminal(err))
		return nil, err
	}
	c.setForbidden(false)
	for i := range page.Items {
		page.Items[i].ManagedFields = nil
	}
	c.revision.rewound(page.ResourceVersion)
	c.relist = time.Now().Add(s.relistEvery + rand.N(s.relistEvery/2))
	return page, nil
}

// watchLeases starts a watch.
func (s *Store) watchLeases(ctx context.Context, c *leaseObjects, o metav1.ListOptions) (w watch.Interface, err error) {
	o.LabelSelector = s.annotations.published()
	rewound := func() (bool, error) {
		now, err := s.api.Revision(ctx, leasesResource, s.leaseSpace)
		return err == nil && c.revision.rewound(now), err
	}
	if err = resume(c.relist, rewound); err == nil {
		w, err = s.api.Metadata.Resource(leasesResource).Namespace(s.leaseSpace).Watch(ctx, o)
	}
	if !expired(err) {
		explained := kubeclient.Explain("watch", "leases in namespace "+s.leaseSpace, err)
		s.reportWatch(ctx, c.records, taskWatchLeases, explained)
		c.setForbidden(kubeclient.IsTerminal(explained))
	}
	return w, err
}
