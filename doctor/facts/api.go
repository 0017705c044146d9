package facts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/trust"
	"github.com/twill-net/twill/subnet/kube"
)

// Kube is how the agent reaches the cluster's API. The zero value: its leases are elsewhere.
type Kube struct {
	Use                               bool // --kube-subnet-mgr
	Kubeconfig, URL, AnnotationPrefix string
	Named                             bool // the caller named Kubeconfig: it may have a command run
}

// apiIn is how long the API has to answer.
const apiIn = 800 * time.Millisecond

// api reads this node's object with the agent's own rights, as the agent does. It opens connections on other threads,
// and so works only where the whole process is in the node's network namespace. A kubeconfig that the agent's command
// line names, and not the caller, is read only if it is root's or the caller's, and never has a command run.
func (g *gathering) api(ctx context.Context) doctor.API {
	k, pools := g.set.Kube, g.Lease.Network.Pools
	if !g.set.AskAPI || !k.Use || len(pools) == 0 {
		return doctor.API{}
	}
	if k.Kubeconfig != "" && !k.Named {
		if err := trust.File(k.Kubeconfig); err != nil {
			g.unread("the cluster's API", fmt.Errorf("kubeconfig %s: %w", k.Kubeconfig, err))
			return doctor.API{}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, apiIn)
	defer cancel()
	var mu sync.Mutex
	var reason error
	store, err := kube.New(ctx, kube.Options{Kubeconfig: k.Kubeconfig, NoCommands: !k.Named, APIURL: k.URL, Node: g.Node, AnnotationPrefix: k.AnnotationPrefix,
		Pools: pools, Waiting: func(_ string, err error) {
			mu.Lock()
			defer mu.Unlock()
			reason = cmp.Or(err, reason)
		}})
	if errors.Is(err, kube.ErrCommand) {
		g.unread("the cluster's API", fmt.Errorf("%w: name it with --kubeconfig-file to have it run", err))
		return doctor.API{}
	}
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
