package enforced

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/filter"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/enforce"
	"github.com/twill-net/twill/policy/policytest"
)

// within is a kernel's tables in a network namespace.
type within struct {
	host.Host
	tables  *filter.Filter
	applied chan time.Time // gets when a plan was carried out, if there is room; nil: nobody asks
}

func (w within) Observe(ctx context.Context, want netstate.State) (have netstate.State, err error) {
	err = w.Do(func() (err error) {
		have, err = w.tables.Observe(ctx, want)
		return err
	})
	return have, err
}

func (w within) Apply(ctx context.Context, p netstate.Plan) error {
	err := w.Do(func() error { return w.tables.Apply(ctx, p) })
	select {
	case w.applied <- time.Now():
	default:
	}
	return err
}

func (w within) Watch(ctx context.Context) (events <-chan struct{}, err error) {
	err = w.Do(func() (err error) {
		events, err = w.tables.Watch(ctx)
		return err
	})
	return events, err
}

// plugged are ports that stay.
type plugged []netstate.Port

func (p plugged) List() ([]netstate.Port, error) { return p, nil }

func (plugged) Watch(ctx context.Context) (<-chan struct{}, error) {
	events := make(chan struct{})
	context.AfterFunc(ctx, func() { close(events) })
	return events, nil
}

// cluster is an Enforcer of node1 of a large cluster, on a real kernel.
type cluster struct {
	*testing.B
	*enforce.Enforcer
	source *policytest.Source
	kernel within
	snap   policy.Snapshot
	site   policy.Site
}

// newHost makes a host for the time of a test.
func newHost(t testing.TB, name string) host.Host {
	t.Helper()
	h := host.Host{Name: name}
	_ = h.Delete() // of a run that crashed
	if err := h.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Delete() })
	return h
}

// start starts an Enforcer that knows nothing yet.
func start(b *testing.B, pods int) *cluster {
	b.Helper()
	h := newHost(b, "tpolbench")
	var tables *filter.Filter
	if err := h.Do(func() (err error) {
		tables, err = filter.New()
		return err
	}); err != nil {
		b.Fatal(err)
	}
	c := &cluster{B: b, source: &policytest.Source{}, kernel: within{h, tables, make(chan time.Time, 1)}}
	c.snap, c.site = policytest.Large(pods)
	c.Enforcer = enforce.New(enforce.Config{Node: c.site.Node, Bridge: c.site.Bridge, Source: c.source, Kernel: c.kernel,
		Ports: plugged(c.site.Ports), Log: slog.New(slog.DiscardHandler), Metrics: enforce.NewMetrics(prometheus.NewRegistry())})
	_ = c.Protect(c.site.Subnets)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.Enforcer.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
		tables.Close()
	})
	return c
}

// tell tells a change, waits until the kernel enforces it, and returns how long that took.
func (c *cluster) tell(change policy.Change) time.Duration {
	c.Helper()
	s := c.snap
	change.Snapshot = func() policy.Snapshot { return s }
	began := time.Now()
	c.source.Put(change)
	if err := c.Flush(context.Background()); err != nil {
		c.Fatal(err)
	}
	return time.Since(began)
}

// percentiles reports the median and the 99th percentile.
func percentiles(b *testing.B, all []time.Duration) {
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkStart goes from a list of everything to a table.
func BenchmarkStart(b *testing.B) {
	for _, pods := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			var all []time.Duration
			for range b.N {
				all = append(all, start(b, pods).tell(policy.Change{Rules: true}))
			}
			percentiles(b, all)
		})
	}
}

// BenchmarkPod enforces that a pod of another node comes, and that it goes.
func BenchmarkPod(b *testing.B) {
	for _, pods := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			c := start(b, pods)
			c.tell(policy.Change{Rules: true})
			p := *c.snap.Pods[len(c.snap.Pods)-1]
			p.Name, p.UID, p.Addrs = "new", "new", []netip.Addr{netip.MustParseAddr("10.200.0.1")}
			var all []time.Duration
			for b.Loop() {
				all = append(all, c.tell(policy.Change{Pods: []policy.PodChange{{Now: &p}}}), c.tell(policy.Change{Pods: []policy.PodChange{{Was: &p}}}))
			}
			percentiles(b, all)
		})
	}
}

// BenchmarkPolicy enforces that a policy of 1,000 changes its port.
func BenchmarkPolicy(b *testing.B) {
	for _, pods := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			c := start(b, pods)
			c.tell(policy.Change{Rules: true})
			var all []time.Duration
			for b.Loop() {
				c.snap.Policies = slices.Clone(c.snap.Policies)
				port := *c.snap.Policies[0].Spec.Ingress[0].Ports[0].Port
				port.IntVal++
				p := c.snap.Policies[0]
				p.Spec.Ingress = []policy.IngressRule{{From: p.Spec.Ingress[0].From, Ports: []policy.RulePort{{Port: &port}}}}
				c.snap.Policies[0] = p
				all = append(all, c.tell(policy.Change{Rules: true}))
			}
			percentiles(b, all)
		})
	}
}

// BenchmarkSquare makes, writes and reads the table of one policy with as many peers as ports.
func BenchmarkSquare(b *testing.B) {
	for _, n := range []int{100, 300, 1000} {
		b.Run(fmt.Sprintf("peers=%d/ports=%[1]d", n), func(b *testing.B) {
			h := newHost(b, "tpolbench")
			snap, site := policytest.Square(n)
			var made, written, read time.Duration
			for b.Loop() {
				began := time.Now()
				want, _ := policy.Desired(site, snap)
				made += time.Since(began)
				size(b, want)
				if err := h.Do(func() error {
					tables, err := filter.New()
					if err != nil {
						return err
					}
					defer tables.Close()
					began := time.Now()
					err = tables.Apply(b.Context(), netstate.Diff(want, nil))
					written += time.Since(began)
					if err != nil {
						return err
					}
					began = time.Now()
					have, err := tables.Observe(b.Context(), want)
					read += time.Since(began)
					if left := netstate.Diff(want, have); len(left) > 0 {
						b.Errorf("after it was written, there is left:\n%s", left[0])
					}
					return errors.Join(err, tables.Apply(b.Context(), netstate.Diff(nil, have)))
				}); err != nil {
					b.Fatal(err)
				}
			}
			for what, took := range map[string]time.Duration{"made": made, "written": written, "read": read} {
				b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), what+"-ms")
			}
		})
	}
}

// size reports how many rules and elements a table has.
func size(b *testing.B, s netstate.State) {
	rules, elements := 0, 0
	for _, o := range s {
		switch o := o.(type) {
		case netstate.Filter:
			rules += strings.Count(o.Rules, "\n") + 1
		case netstate.Hook:
			rules += strings.Count(o.Rules, "\n") + 1
		case netstate.Element:
			elements++
		}
	}
	b.ReportMetric(float64(rules), "rules")
	b.ReportMetric(float64(elements), "elements")
}

// BenchmarkBudget makes, writes and reads the table of policies of one namespace that cost as much as a namespace may by default,
// and of as many namespaces as need what a node may.
func BenchmarkBudget(b *testing.B) {
	for _, namespaces := range []int{1, 5} {
		b.Run(fmt.Sprintf("namespaces=%d", namespaces), func(b *testing.B) {
			h := newHost(b, "tpolbench")
			snap, site := policytest.Expensive(30_000, namespaces, policy.DefaultBudget.Namespace)
			budget := policy.DefaultBudget
			site.Budget = &budget
			for b.Loop() {
				before := kilobytes(b, "/proc/meminfo", "SUnreclaim")
				began := time.Now()
				table, _ := policy.NewTable(site, snap)
				made := time.Since(began)
				if s := table.Spent(); len(s.LeftOut) > 0 || s.Node < namespaces*policy.DefaultBudget.Namespace*9/10 {
					b.Fatalf("%d is spent, and left out is %v", s.Node, s.LeftOut)
				}
				if err := h.Do(func() error { return written(b, table.State(), before) }); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(made.Milliseconds()), "made-ms")
				b.ReportMetric(float64(kilobytes(b, "/proc/self/status", "VmHWM"))/1024, "resident-MB")
			}
		})
	}
}

// written writes a table to the kernel, reads it, and deletes it.
func written(b *testing.B, want netstate.State, before int) error {
	tables, err := filter.New()
	if err != nil {
		return err
	}
	defer tables.Close()
	began := time.Now()
	if err := tables.Apply(b.Context(), netstate.Diff(want, nil)); err != nil {
		return err
	}
	b.ReportMetric(float64(time.Since(began).Milliseconds()), "written-ms")
	b.ReportMetric(float64(kilobytes(b, "/proc/meminfo", "SUnreclaim")-before)/1024, "kernel-MB")
	size(b, want)
	began = time.Now()
	have, err := tables.Observe(b.Context(), want)
	b.ReportMetric(float64(time.Since(began).Milliseconds()), "read-ms")
	return errors.Join(err, tables.Apply(b.Context(), netstate.Diff(nil, have)))
}

// kilobytes reads a line of a file of /proc.
func kilobytes(b *testing.B, path, name string) (n int) {
	b.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), name+":")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		b.Fatal(err)
	}
	return n
}
