package facts

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/trust"
	"github.com/twill-net/twill/internal/kubeclient"
	policykube "github.com/twill-net/twill/policy/kube"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/kube"
)

// apiTimeout is how long the API has to answer.
const apiTimeout = 800 * time.Millisecond

// server returns the agent's API server, and false if it is not to be asked. Connections to it are opened on other
// threads, and so work only if the whole process is in the node's network namespace. A kubeconfig that the agent names, and
// not the caller, is read only if it belongs to root or the caller, and its commands never run.
func (g *gathering) server() (s kubeclient.Server, ok bool) {
	k, named := g.settings.Kube, g.options.Kubeconfig != ""
	if !g.options.AskAPI || !k.Use || len(g.Lease.Network.Pools) == 0 {
		return s, false
	}
	if k.Kubeconfig != "" && !named {
		if err := trust.File(k.Kubeconfig); err != nil {
			g.unread("the cluster's API", fmt.Errorf("kubeconfig %s: %w", k.Kubeconfig, err))
			return s, false
		}
	}
	return kubeclient.Server{Kubeconfig: k.Kubeconfig, URL: k.URL, NoCommands: !named}, true
}

// api reads this node's object with the agent's credentials.
func (g *gathering) api(ctx context.Context) doctor.API {
	at, ok := g.server()
	if !ok {
		return doctor.API{}
	}
	g.apiServer = &at
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	var mu sync.Mutex
	var reason error
	store, err := kube.New(ctx, kube.Options{Kubeconfig: at.Kubeconfig, NoCommands: at.NoCommands, APIURL: at.URL, Node: g.Node,
		AnnotationPrefix: g.settings.Kube.AnnotationPrefix, Pools: g.Lease.Network.Pools,
		Store: g.Lease.Network.Store, LeaseNamespace: kubeclient.Namespace(), Waiting: func(_ string, err error) {
			mu.Lock()
			defer mu.Unlock()
			reason = cmp.Or(err, reason)
		}})
	if errors.Is(err, kubeclient.ErrCommand) {
		g.unread("the cluster's API", fmt.Errorf("%w: name it with --kubeconfig-file to have it run", err))
		return doctor.API{}
	}
	if err == nil {
		_, err = store.Hints(ctx)
	}
	if err == nil {
		g.countPolicies(ctx, at)
		return g.strays(ctx, store)
	}
	mu.Lock()
	defer mu.Unlock()
	err = cmp.Or(reason, err)
	return trouble(err)
}

// trouble is what err, an error of the API, comes to.
func trouble(err error) doctor.API {
	return doctor.API{Problem: problem(err), Grant: grant(err), Error: err.Error()}
}

// strays says why agents read Nodes where they are to read Lease objects: for the sake of a node, or because these
// cannot be read.
func (g *gathering) strays(ctx context.Context, store *kube.Store) (a doctor.API) {
	if g.Lease.Network.Store != subnet.StoreLeases {
		return a
	}
	var err error
	if a.Stray, a.Guard, err = store.Asked(ctx); err != nil {
		return trouble(err)
	}
	return a
}

// countPolicies counts the cluster's NetworkPolicies. An agent that does not enforce them needs no right to read them, and
// then nothing is known.
func (g *gathering) countPolicies(ctx context.Context, at kubeclient.Server) {
	if n, err := policykube.Count(ctx, at); err == nil {
		g.Policies.Count = n
	}
}

// problem returns the class of an error of the API.
func problem(err error) doctor.APIProblem {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var timeout net.Error
	switch code := kubeclient.StatusCode(err); {
	case code == http.StatusUnauthorized:
		return doctor.Unauthorized
	case code == http.StatusForbidden:
		return doctor.Forbidden
	case code == http.StatusTooManyRequests:
		return doctor.TooManyRequests
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return doctor.ExpiredCert
	case errors.As(err, &unknown):
		return doctor.UnknownAuthority
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH),
		errors.As(err, &timeout) && timeout.Timeout():
		return doctor.Unreachable
	}
	return doctor.OtherProblem
}

// lacks is what a forbidden request lacks, as only the message of the API server says:
//
//	nodes "a" is forbidden: User "u" cannot get resource "nodes" in API group "" at the cluster scope
var lacks = regexp.MustCompile(`User "([^"]*)" cannot (\w+) resource "([^"]+)"`)

// grant returns what would have to be granted for a forbidden request, empty if the answer does not say.
func grant(err error) string {
	m := lacks.FindStringSubmatch(err.Error())
	if m == nil {
		return ""
	}
	return m[1] + " the verb " + m[2] + " on " + m[3]
}
