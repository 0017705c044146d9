package kube

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/internal/kubeclient"
)

// list returns a page of the Nodes' metadata, after it has made sure that the podCIDRs of its peers are known.
func (s *Store) list(
	ctx context.Context, c *nodes, o metav1.ListOptions,
) (page *metav1.PartialObjectMetadataList, err error) {
	if o.Continue == "" && c.selector == "" && c.podCIDRs.empty() {
		page, err = s.listWhole(ctx, c)
	} else if page, err = s.listPage(ctx, c, o); err == nil {
		c.podCIDRs.rewound(page.ResourceVersion)
		err = s.complete(ctx, c, page.Items)
	}
	if err = kubeclient.Explain("list", "nodes", err); err != nil {
		s.reportWatch(ctx, c.records, taskWatch, err)
		return nil, err
	}
	c.relist = time.Now().Add(s.relistEvery + rand.N(s.relistEvery/2))
	return page, nil
}

// listWhole lists all Nodes in full, and returns their metadata.
func (s *Store) listWhole(ctx context.Context, c *nodes) (*metav1.PartialObjectMetadataList, error) {
	all, own := &metav1.PartialObjectMetadataList{}, false
	version, err := s.api.nodes(ctx, func(m *metav1.ObjectMeta, podCIDRs string) {
		c.podCIDRs.put(m.UID, podCIDRs)
		s.annotations.trim(m)
		own = own || m.Name == s.node
		all.Items = append(all.Items, metav1.PartialObjectMetadata{ObjectMeta: *m})
	})
	all.ResourceVersion = version
	c.podCIDRs.advance(version)
	if err == nil && own {
		err = s.readOwn(ctx, c)
	}
	return all, err
}

func (s *Store) listPage(
	ctx context.Context, c *nodes, o metav1.ListOptions,
) (*metav1.PartialObjectMetadataList, error) {
	o.FieldSelector = c.selector
	if o.ResourceVersion == "0" {
		o.ResourceVersion = "" // as etcd has it: an API server that lags behind would miss peers
	}
	if o.ResourceVersion != "" {
		if _, err := s.rewound(ctx, c); err != nil {
			return nil, err
		}
		if kubeclient.Older(c.podCIDRs.at(), o.ResourceVersion) {
			o.ResourceVersion = "" // client-go would ask for it ten times
		}
	}
	ctx, cancel := context.WithTimeout(ctx, kubeclient.ListTimeout)
	defer cancel()
	return s.api.Metadata.Resource(nodesResource).List(ctx, o)
}

// Up to fullListThreshold Nodes of a page are read one by one, maxConcurrentGets at a time; beyond, all are listed
// whole.
const fullListThreshold, maxConcurrentGets = 64, 16

// complete reads what metadata lacks of a page.
func (s *Store) complete(ctx context.Context, c *nodes, page []metav1.PartialObjectMetadata) error {
	var strangers []*metav1.ObjectMeta
	for i := range page {
		m := &page[i].ObjectMeta
		s.annotations.trim(m)
		if m.Name == s.node {
			if err := s.readOwn(ctx, c); err != nil {
				return err
			}
		} else if c.lacks(c.known(m)) {
			strangers = append(strangers, m)
		}
	}
	if len(strangers) > fullListThreshold {
		_, err := s.api.nodes(ctx, func(m *metav1.ObjectMeta, podCIDRs string) { c.podCIDRs.put(m.UID, podCIDRs) })
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxConcurrentGets)
	for _, m := range strangers {
		g.Go(func() error { return s.learn(ctx, c, m.Name, m.ResourceVersion) })
	}
	return g.Wait()
}

// readOwn reads this node's own Node.
func (s *Store) readOwn(ctx context.Context, c *nodes) error {
	n, err := s.api.node(ctx, s.node)
	if err == nil {
		c.putOwn(n)
	}
	return err
}

// learn reads the podCIDRs of a Node, as they were at a version or later.
func (s *Store) learn(ctx context.Context, c *nodes, name, version string) error {
	uid, cidrs, err := s.api.spec(ctx, name, version)
	switch {
	case apierrors.IsNotFound(err):
		return nil // the watch tells the same
	case err != nil:
		return kubeclient.Explain("get", "nodes", err)
	}
	c.podCIDRs.put(uid, cidrs)
	return nil
}

// readQueued reads the Nodes of the queue until that is shut down.
func (s *Store) readQueued(ctx context.Context, c *nodes) {
	for {
		name, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		if !c.needed(name) {
			c.queue.Forget(name)
		} else if complete, err := s.readOne(ctx, c, name); err == nil && complete {
			c.queue.Forget(name)
		} else {
			c.queue.AddRateLimited(name)
		}
		c.queue.Done(name)
	}
}

// readOne reads a Node, and reports whether nothing is missing any more.
func (s *Store) readOne(ctx context.Context, c *nodes, name string) (complete bool, err error) {
	if name == s.node {
		err = s.readOwn(ctx, c)
		complete = err == nil
	} else if err = s.learn(ctx, c, name, "0"); err == nil {
		complete = c.learned(name)
	}
	if ctx.Err() == nil {
		s.progress.Report(taskRead, err)
	}
	return complete, err
}
