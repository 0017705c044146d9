package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twill-net/twill/internal/certs"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/subnet"
)

const (
	// renewalPause is how often it is looked at how leases and certificates are.
	renewalPause = 10 * time.Second
	// mostUnrenewed is how many attempts to renew a lease may fail before the node is not ready: one is a restart of the
	// store.
	mostUnrenewed = 1
)

// certified is a Store that may use certificates. It is no interface of package subnet, which the CNI plugin has, too.
type certified interface {
	// Certificates returns those that there are now, and why others cannot be read.
	Certificates() ([]certs.Certificate, error)
}

// renewals is what was seen last of what ends unless somebody renews it.
type renewals struct {
	mu   sync.Mutex
	all  []certs.Certificate
	told bool // an event of the lease was sent
}

func (r *renewals) certificates() []certs.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

// Ready returns why the node should not count as ready. A lease that is not renewed cuts nobody off yet: the status, and
// with it the node's condition NetworkUnavailable, has nothing to do with it. Nor with a config that is not followed: the
// network of before works.
func (a *Agent) Ready() error {
	if err := a.status.Ready(); err != nil {
		return err
	}
	if a.Policies != nil {
		if err := a.Policies.Ready(); err != nil {
			return err
		}
	}
	if a.Refused != nil {
		return a.Refused
	}
	return a.unrenewed()
}

// unrenewed returns an error if the store could not renew the lease more than mostUnrenewed times in a row.
func (a *Agent) unrenewed() error {
	r, ok := a.Store.(subnet.Renewer)
	if !ok {
		return nil
	}
	ends, failed := r.Renewal()
	if failed <= mostUnrenewed {
		return nil
	}
	return fmt.Errorf("the lease could not be renewed and ends at %s: other nodes delete the routes to this one's pods then; "+
		"the log says what the store answers", ends.UTC().Format(time.RFC3339))
}

// watchRenewal keeps the metrics about leases and certificates, and says that a lease is not renewed.
func (a *Agent) watchRenewal(ctx context.Context) error {
	for {
		a.noteRenewal()
		a.noteCertificates()
		if !loop.Sleep(ctx, renewalPause) {
			return nil
		}
	}
}

func (a *Agent) noteRenewal() {
	r, ok := a.Store.(subnet.Renewer)
	if !ok {
		return
	}
	ends, failed := r.Renewal()
	a.Metrics.leaseEnds.Set(0)
	if !ends.IsZero() {
		a.Metrics.leaseEnds.Set(float64(ends.Unix()))
	}
	a.Metrics.unrenewed.Set(float64(failed))
	err := a.unrenewed()
	if err != nil {
		a.causes.Add(a.Log, slog.LevelError, "renew the lease", "", "node", a.Node, "err", err)
		if !a.renewals.told {
			a.event("Warning", "LeaseNotRenewed", err.Error())
		}
	}
	a.renewals.told = err != nil
}

func (a *Agent) noteCertificates() {
	s, ok := a.Store.(certified)
	if !ok {
		return
	}
	all, err := s.Certificates()
	if err != nil {
		a.causes.Error(a.Log, "read when certificates end", err, "node", a.Node)
	}
	a.Metrics.certificates.Reset()
	for _, c := range all {
		a.Metrics.certificates.WithLabelValues(c.Name).Set(float64(c.Ends.Unix()))
	}
	a.renewals.mu.Lock()
	defer a.renewals.mu.Unlock()
	a.renewals.all = all
}
