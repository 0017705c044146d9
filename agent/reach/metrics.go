package reach

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/netstate"
)

// Metrics are a Prober's numbers for Prometheus. Only peers that do not answer have a series of their own.
type Metrics struct {
	asked     *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	packets   *prometheus.CounterVec
	missing   *prometheus.GaugeVec
	needs     *prometheus.GaugeVec
	tooLarge  prometheus.Gauge
	unreaches prometheus.Gauge
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "twill_reach_probes_total",
			Help: "Peers' addresses that were asked for an answer, by what came of it: answered, lost."}, []string{"family", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "twill_reach_round_trip_seconds",
			Help:    "The shortest round trip of the echo requests to a peer.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8)}, []string{"family"}),
		packets: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "twill_reach_echoes_total",
			Help: "Echo requests to peers that answer them, by what came of it: answered, lost."}, []string{"family", "result"}),
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "twill_reach_peer_unreached",
			Help: "1 for each peer of which no packet comes back, in any protocol."}, []string{"peer"}),
		unreaches: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_reach_peers_unreached",
			Help: "Peers of which no packet comes back, in any protocol."}),
		needs: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "twill_reach_target_unreached",
			Help: "1 for what the node needs beside its peers, once no answer comes back: default gateway, API server, cluster's DNS."}, []string{"target"}),
		tooLarge: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_reach_peers_too_large",
			Help: "Peers to which small packets pass, and those of the pods' full size do not."}),
	}
	r.MustRegister(m.asked, m.seconds, m.packets, m.missing, m.needs, m.unreaches, m.tooLarge)
	for _, family := range []string{netstate.IPv4.String(), netstate.IPv6.String()} {
		m.seconds.WithLabelValues(family) // so that a rate is known from the first on
		for _, result := range []string{"answered", "lost"} {
			m.asked.WithLabelValues(family, result)
			m.packets.WithLabelValues(family, result)
		}
	}
	return m
}

// count notes an answer.
func (m *Metrics) count(k key, a Answer) {
	family := netstate.FamilyOf(k.addr.Addr()).String()
	if a.Own != nil || k.kind != Node {
		return
	}
	if a.Err != nil {
		m.asked.WithLabelValues(family, "lost").Inc()
		return
	}
	m.asked.WithLabelValues(family, "answered").Inc()
	m.packets.WithLabelValues(family, "answered").Add(float64(a.Sent - a.Lost))
	m.packets.WithLabelValues(family, "lost").Add(float64(a.Lost))
	if a.RoundTrip > 0 {
		m.seconds.WithLabelValues(family).Observe(a.RoundTrip.Seconds())
	}
}

// say sets the gauges.
func (m *Metrics) say(r Report) {
	m.missing.Reset()
	m.needs.Reset()
	nodes := map[string]bool{}
	for _, u := range r.Unreached {
		if u.Kind != Node {
			m.needs.WithLabelValues(string(u.Kind)).Set(1)
			continue
		}
		nodes[u.Node] = true
		m.missing.WithLabelValues(u.Node).Set(1)
	}
	m.unreaches.Set(float64(len(nodes)))
	m.tooLarge.Set(float64(len(r.TooLarge)))
}
