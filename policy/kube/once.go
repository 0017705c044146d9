package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/policy"
)

// Count returns how many NetworkPolicies a cluster has. It needs the right to list them.
func Count(ctx context.Context, at kubeclient.Server) (int, error) {
	api, err := kubeclient.Open(at)
	if err != nil {
		return 0, err
	}
	const page = 500
	list, err := api.Metadata.Resource(policyResource).List(ctx, metav1.ListOptions{Limit: page})
	if err != nil {
		return 0, kubeclient.Explain("list", policyResource.Resource, err)
	}
	n := len(list.Items)
	if list.RemainingItemCount != nil {
		n += int(*list.RemainingItemCount)
	}
	return n, nil
}

// Read returns what a Source watches, as it is now, with ClusterNetworkPolicies if cluster is true. It needs the rights of
// a Source.
func Read(ctx context.Context, at kubeclient.Server, cluster bool) (s policy.Snapshot, err error) {
	api, err := kubeclient.Open(at)
	if err != nil {
		return s, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var once sync.Once
	end := func(snapshot policy.Snapshot, cause error) {
		once.Do(func() {
			s, err = snapshot, cause
			stop()
		})
	}
	source, err := New(api, func(task string, err error) {
		if err != nil && !errors.Is(err, errNoAPI) {
			end(policy.Snapshot{}, fmt.Errorf("%s: %w", task, err))
		}
	})
	if err != nil {
		return s, err
	}
	source.Cluster = cluster
	changed, watched := make(chan struct{}, 1), make(chan struct{})
	go func() {
		for {
			select {
			case <-watched:
				return
			case <-changed:
				if c, ok := source.Take(); ok {
					end(c.Snapshot(), nil)
				}
			}
		}
	}()
	watchErr := source.Watch(ctx, func() { loop.Notify(changed) })
	close(watched)
	end(policy.Snapshot{}, errors.Join(fmt.Errorf("read network policies: %w", context.Cause(ctx)), watchErr))
	return s, err
}
