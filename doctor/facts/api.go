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
	"github.com/twill-net/twill/subnet/kube"
)

// apiTimeout is how long the API has to answer.
const apiTimeout = 800 * time.Millisecond

// api reads this node's object with the agent's credentials. It opens connections on other threads, and so works
// only if the whole process is in the node's network namespace. A kubeconfig that the agent names, and not the
// caller, is read only if it belongs to root or the caller, and its commands never run.
func (g *gathering) api(ctx context.Context) doctor.API {
	k, pools, named := g.settings.Kube, g.Lease.Network.Pools, g.options.Kubeconfig != ""
	if !g.options.AskAPI || !k.Use || len(pools) == 0 {
		return doctor.API{}
	}
	if k.Kubeconfig != "" && !named {
		if err := trust.File(k.Kubeconfig); err != nil {
			g.unread("the cluster's API", fmt.Errorf("kubeconfig %s: %w", k.Kubeconfig, err))
			return doctor.API{}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	var mu sync.Mutex
	var reason error
	store, err := kube.New(ctx, kube.Options{Kubeconfig: k.Kubeconfig, NoCommands: !named, APIURL: k.URL, Node: g.Node,
		AnnotationPrefix: k.AnnotationPrefix, Pools: pools, Waiting: func(_ string, err error) {
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
		return doctor.API{}
	}
	mu.Lock()
	defer mu.Unlock()
	err = cmp.Or(reason, err)
	return doctor.API{Problem: problem(err), Grant: grant(err), Error: err.Error()}
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
