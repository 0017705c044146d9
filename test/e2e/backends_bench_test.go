package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// BenchmarkBackends prints what each backend that this machine's kernel carries costs: one TCP stream and pings from
// a pod to one of another node, both nodes being namespaces of this machine. CPU is of the whole machine.
func BenchmarkBackends(b *testing.B) {
	table := "\n| | MTU | Gbit/s | CPU-s for a Gbit | ping p50 µs |\n|---|---|---|---|---|\n"
	for _, backend := range []string{"host-gw", "vxlan", "udp", "wireguard"} {
		b.Run(backend, func(b *testing.B) {
			for b.Loop() {
				table += benchBackend(b, backend)
			}
		})
	}
	fmt.Print(table)
}

// benchBackend is one line of the table.
func benchBackend(b *testing.B, backend string) string {
	l := labtest.Up(b, lab.Spec{Name: "e2ebench" + strings.ReplaceAll(backend, "-", ""), Backend: backend, Store: lab.File, Nodes: 2, Pods: 1})
	from, to := l.Nodes()[0].Pods()[0], l.Nodes()[1].Pods()[0]
	mtu, err := from.MTU()
	if err != nil {
		b.Fatal(err)
	}
	var rates, costs []float64
	for range 5 {
		rate, cost := stream(b, from, to)
		rates, costs = append(rates, rate), append(costs, cost)
	}
	row := fmt.Sprintf("| %s | %d | %.2f | %.2f | %d |\n", backend, mtu, median(rates), median(costs), pingMedian(b, from, to).Microseconds())
	b.ReportMetric(median(rates), "Gbit/s")
	if err := l.Down(); err != nil {
		b.Fatal(err)
	}
	return row
}

// stream sends for about two seconds, and gives Gbit/s and the seconds of CPU that a Gbit costs.
func stream(b *testing.B, from, to *lab.Pod) (rate, cost float64) {
	b.Helper()
	send := func(bytes int64) (gbits float64, took time.Duration) {
		got, err := from.Send(b.Context(), to.Host, to.Addrs[0], bytes)
		if err != nil {
			b.Fatal(err)
		}
		return float64(bytes) * 8 / 1e9, got.Took
	}
	const sample = 16 << 20
	_, took := send(sample)
	busy := busyTime(b)
	gbits, took := send(int64(float64(sample) * 2 / took.Seconds()))
	return gbits / took.Seconds(), (busyTime(b) - busy).Seconds() / gbits
}

// busyTime is how long the machine's processors have worked since it started (proc(5), /proc/stat, in 1/100 s).
func busyTime(b *testing.B) time.Duration {
	b.Helper()
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.Fatal(err)
	}
	var user, nice, system, idle, iowait, irq, softirq, steal int64
	if _, err := fmt.Sscanf(string(data), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+nice+system+irq+softirq) * 10 * time.Millisecond
}

func pingMedian(b *testing.B, from, to *lab.Pod) time.Duration {
	b.Helper()
	var all []time.Duration
	for range 500 {
		took, err := from.Ping(b.Context(), host.Ping{To: to.Addrs[0], Timeout: time.Second})
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, took)
	}
	return median(all)
}

func median[T float64 | time.Duration](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}
