package facts

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/kube"
)

// Kube is how the agent reaches the cluster's API. The zero value: its leases are elsewhere.
type Kube struct {
	Use                               bool // --kube-subnet-mgr
	Kubeconfig, URL, AnnotationPrefix string
}

// apiIn is how long the API has to answer.
const apiIn = 800 * time.Millisecond

// api reads this node's object with the agent's own rights, as the agent does. It opens connections on other threads,
// and so works only where the whole process is in the node's network namespace.
func (s Settings) api(ctx context.Context, node string, pools []subnet.Pool) doctor.API {
	if !s.AskAPI || !s.Kube.Use || len(pools) == 0 {
		return doctor.API{}
	}
	ctx, cancel := context.WithTimeout(ctx, apiIn)
	defer cancel()
	var mu sync.Mutex
	var reason error
	store, err := kube.New(ctx, kube.Options{Kubeconfig: s.Kube.Kubeconfig, APIURL: s.Kube.URL, Node: node, AnnotationPrefix: s.Kube.AnnotationPrefix,
		Pools: pools, Waiting: func(_ string, err error) {
			mu.Lock()
			defer mu.Unlock()
			reason = cmp.Or(err, reason)
		}})
	if err == nil {
		_, err = store.Hints(ctx)
	}
	if err == nil {
		return doctor.API{Asked: true}
	}
	mu.Lock()
	defer mu.Unlock()
	return doctor.API{Asked: true, Error: cmp.Or(reason, err).Error()}
}
