package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/loop"
)

// lookAtAPI is how often each node asks the API server whether it contradicts itself. That takes two small calls.
const lookAtAPI = 10 * time.Minute

// watchAPI reports that the API server contradicts itself, and that it does not any more, until ctx is done.
func (s *Store) watchAPI(ctx context.Context) {
	for loop.Sleep(ctx, s.lookAtAPI/2+rand.N(s.lookAtAPI)) {
		contradiction, err := s.contradiction(ctx)
		if err != nil {
			continue // an outage is told of by what follows Nodes
		}
		if s.progress.Report(taskCompare, contradiction) && contradiction != nil {
			s.Event(warning, "APIServerContradicts", contradiction.Error())
		}
	}
}

// contradiction returns an error if the API server lists this node in a newer version than it reads it a moment later. It
// lists from its memory, and reads from etcd: one of the two is of another history, as when etcd was put back to a backup
// while the API server ran. All agents follow what is listed, and know nothing of it.
func (s *Store) contradiction(ctx context.Context) (contradiction, err error) {
	limited, cancel := context.WithTimeout(ctx, kubeclient.CallTimeout)
	defer cancel()
	listed, err := s.api.Metadata.Resource(nodesResource).List(limited, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", s.node).String(), ResourceVersion: "0"})
	if err != nil || len(listed.Items) != 1 {
		return nil, err
	}
	n, err := s.api.node(limited, s.node)
	if err != nil {
		return nil, err
	}
	if l := listed.Items[0]; l.UID == n.UID && kubeclient.Older(n.ResourceVersion, l.ResourceVersion) {
		return fmt.Errorf("the API server contradicts itself about node %q: it lists version %s and reads version %s from etcd; "+
			"if etcd was restored from a backup, restart all API servers", s.node, l.ResourceVersion, n.ResourceVersion), nil
	}
	return nil, nil
}
