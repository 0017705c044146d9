package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/agent/reach"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Metrics are the agent's numbers for Prometheus.
type Metrics struct {
	snapshots    prometheus.Counter
	peers        prometheus.Gauge
	skipped      prometheus.Gauge
	objects      *prometheus.GaugeVec
	changes      *prometheus.CounterVec
	applySeconds prometheus.Histogram
	applyErrors  prometheus.Counter
	lastApply    prometheus.Gauge
	wrong        prometheus.Gauge
	contended    prometheus.Counter
	ready        prometheus.Gauge
	calls        *prometheus.CounterVec
	troubles     prometheus.Gauge
	checksums    prometheus.Gauge
	leaseEnds    prometheus.Gauge
	unrenewed    prometheus.Gauge
	certificates *prometheus.GaugeVec
	reach        *reach.Metrics
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{reach: reach.NewMetrics(r),
		snapshots: prometheus.NewCounter(prometheus.CounterOpts{Name: "twill_snapshots_total",
			Help: "Snapshots of the leases that the store delivered."}),
		peers: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_peers",
			Help: "Other nodes that have a lease, those that are left out included."}),
		skipped: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_peers_skipped",
			Help: "Peers' leases, or parts of them, that are left out; the log says why."}),
		objects: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "twill_objects",
			Help: "Kernel objects that should exist, by kind."}, []string{"kind"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "twill_changes_total",
			Help: "Changes that were applied to the kernel, by kind of object."}, []string{"kind"}),
		applySeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "twill_apply_seconds",
			Help: "Time to apply one plan.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8)}),
		applyErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "twill_apply_errors_total",
			Help: "Plans of which a part could not be applied."}),
		lastApply: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_last_apply_timestamp_seconds",
			Help: "When a plan was last applied to the kernel, in Unix time; 0: there was none yet."}),
		wrong: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_objects_wrong",
			Help: "Kernel objects that were still not as wanted after the last reconcile."}),
		contended: prometheus.NewCounter(prometheus.CounterOpts{Name: "twill_contended_total",
			Help: "Times that an object was found to be changed by someone else again and again."}),
		ready: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_ready",
			Help: "1 when pods of this node can count on their network."}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "twill_provider_calls_total",
			Help: "Calls of the cloud's API, by what came of them: a read, a write, an error."}, []string{"result"}),
		troubles: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_provider_troubles",
			Help: "What is wrong in the cloud's network; twillctl doctor says what it is."}),
		checksums: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_checksums_broken",
			Help: "Devices whose checksum offload is off because packets were found to arrive broken (TxChecksum auto)."}),
		leaseEnds: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_lease_end_timestamp_seconds",
			Help: "When this node's lease ends unless it is renewed, in Unix time; 0: it does not by itself."}),
		unrenewed: prometheus.NewGauge(prometheus.GaugeOpts{Name: "twill_lease_renewals_failed",
			Help: "Attempts in a row to renew this node's lease that have failed since that was due."}),
		certificates: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "twill_certificate_end_timestamp_seconds",
			Help: "When a certificate ends by which the agent and its store know each other, in Unix time."}, []string{"certificate"}),
	}
	r.MustRegister(m.snapshots, m.peers, m.skipped, m.objects, m.changes, m.applySeconds, m.applyErrors, m.lastApply,
		m.wrong, m.contended, m.ready, m.calls, m.troubles, m.checksums, m.leaseEnds, m.unrenewed, m.certificates)
	return m
}

// reported counts what a backend's Reporter did since it reported before.
func (m *Metrics) reported(before, now backend.Health) {
	if now.Calls < before.Calls { // it was started again
		before = backend.Health{}
	}
	calls, writes, failures := now.Calls-before.Calls, now.Writes-before.Writes, now.Failures-before.Failures
	m.calls.WithLabelValues("read").Add(float64(calls - writes - failures))
	m.calls.WithLabelValues("write").Add(float64(writes))
	m.calls.WithLabelValues("error").Add(float64(failures))
	m.troubles.Set(float64(len(now.Troubles)))
}

func (m *Metrics) observed(snap subnet.Snapshot, want netstate.State) {
	m.peers.Set(float64(len(snap.Peers)))
	counts := map[netstate.Kind]int{}
	for k := range want {
		counts[k.Kind]++
	}
	for k := netstate.KindLink; k <= netstate.KindChain; k++ {
		m.objects.WithLabelValues(k.String()).Set(float64(counts[k]))
	}
}

func (m *Metrics) finished(r result, ready bool) {
	m.wrong.Set(float64(len(r.left)))
	m.ready.Set(0)
	if ready {
		m.ready.Set(1)
	}
}
