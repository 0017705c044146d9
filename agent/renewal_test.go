package agent

import (
	"errors"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/internal/certs"
	"github.com/twill-net/twill/subnet/file"
)

// ending is a store whose lease and certificate end.
type ending struct {
	*reporting
	ends   time.Time
	failed atomic.Int32
	unread atomic.Bool
}

func (e *ending) Renewal() (time.Time, int) { return e.ends, int(e.failed.Load()) }

func (e *ending) Certificates() ([]certs.Certificate, error) {
	if e.unread.Load() {
		return nil, errors.New("client.crt: permission denied")
	}
	return []certs.Certificate{{Name: "etcd-certfile /x", Ends: e.ends}}, nil
}

// TestRunSaysThatItsLeaseEnds: a lease that could not be renewed twice makes the node not ready, is a line and an event, and
// says nothing of the data path.
func TestRunSaysThatItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		store := &ending{reporting: &reporting{}, ends: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
		registry := prometheus.NewRegistry()
		n.tune = func(c *Config) {
			store.Store = c.Store.(*file.Store)
			c.Store, c.Metrics = store, NewMetrics(registry)
		}
		stop := n.start()
		defer stop()
		n.eventually("ready", n.ready)
		ask := func(path string) string {
			w := httptest.NewRecorder()
			n.agent.Handler(registry).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			return w.Body.String()
		}
		mustAnswer := func(path, words string) {
			t.Helper()
			time.Sleep(2 * renewalPause)
			if got := ask(path); !strings.Contains(got, words) {
				t.Errorf("%s answers %q, want %q", path, got, words)
			}
		}
		store.failed.Store(1)
		mustAnswer("/readyz", "ok\n")
		mustAnswer("/metrics", "\ntwill_lease_renewals_failed 1\n")
		mustAnswer("/metrics", "\ntwill_lease_end_timestamp_seconds 1.893553445e+09\n")
		mustAnswer("/metrics", `twill_certificate_end_timestamp_seconds{certificate="etcd-certfile /x"} 1.893553445e+09`)
		mustAnswer("/status", `"certificates":[{"name":"etcd-certfile /x","ends":"2030-01-02T03:04:05Z"}]`)
		store.failed.Store(2)
		mustAnswer("/readyz", "the lease could not be renewed and ends at 2030-01-02T03:04:05Z")
		mustAnswer("/healthz", "ok\n")
		if !n.ready() || n.logs("msg=\"renew the lease\"") == 0 || strings.Count(store.text(), "LeaseNotRenewed") != 1 {
			t.Errorf("the data path is well %t, events %q, log:\n%s", n.ready(), store.text(), n.log.String())
		}
		store.failed.Store(0)
		store.unread.Store(true)
		mustAnswer("/readyz", "ok\n")
		if n.logs("client.crt: permission denied") == 0 || strings.Contains(ask("/metrics"), "twill_certificate_end") {
			t.Errorf("a certificate that cannot be read is not said, or is shown:\n%s", ask("/metrics"))
		}
	})
}
