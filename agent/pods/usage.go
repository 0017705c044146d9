package pods

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/ipam"
)

// Metrics are numbers about pods' addresses for Prometheus.
type Metrics struct{ all, used *prometheus.GaugeVec }

// NewMetrics makes the metrics and registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		all: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "twill_pod_addresses",
			Help: "Addresses of this node's lease that pods can have, 2147483647 at most."}, []string{"family"}),
		used: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "twill_pod_addresses_used",
			Help: "Addresses of this node's lease that are in use."}, []string{"family"}),
	}
	r.MustRegister(m.all, m.used)
	return m
}

// reportUsage keeps the metrics, and says once that no address is left for the next pod.
func (r *Reclaimer) reportUsage() error {
	usage, err := ipam.Store(r.Store).SubnetUsage(r.Lease())
	full := ""
	for _, u := range usage {
		if r.Metrics != nil {
			family := netstate.FamilyOf(u.Set[0].First).String()
			r.Metrics.all.WithLabelValues(family).Set(float64(u.All))
			r.Metrics.used.WithLabelValues(family).Set(float64(u.Used))
		}
		if u.Used >= u.All {
			full = fmt.Sprintf("all %d addresses of %s are in use: no pod can be added to this node until one is deleted", u.All, u.Set[0].Subnet)
		}
	}
	if full != "" && full != r.full {
		r.Log.Warn("no address is left for pods", "reason", full)
		if r.Event != nil {
			r.Event("Warning", "AddressesExhausted", full)
		}
	}
	r.full = full
	return err
}
