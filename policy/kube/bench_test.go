package kube

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// BenchmarkList is a list of 10,000 pods, and what is kept of each: of a hundred Deployments, and of StatefulSets, where
// each has labels of its own.
func BenchmarkList(b *testing.B) {
	const pods = 10_000
	for _, bench := range []struct {
		name   string
		change func(*corev1.Pod)
	}{
		{"deployments", func(*corev1.Pod) {}},
		{"statefulsets", func(p *corev1.Pod) { p.Labels["statefulset.kubernetes.io/pod-name"] = p.Name }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			body := manyPods(b, pods, bench.change)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			var kept *state
			before := heap()
			for b.Loop() {
				kept = newState()
				list, err := readPods(bytes.NewReader(body), &kept.shared)
				if err != nil {
					b.Fatal(err)
				}
				kept.replacePods(list.Items)
			}
			b.ReportMetric(float64(heap()-before)/pods, "kept-B/pod")
			runtime.KeepAlive(kept)
			runtime.KeepAlive(body)
		})
	}
}

func manyPods(b *testing.B, n int, change func(*corev1.Pod)) []byte {
	all := make([]corev1.Pod, n)
	for i := range all {
		all[i] = onePod(i)
		change(&all[i])
	}
	return encoded(b, all...)
}

// heap returns what the heap holds.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkChange is a change of one pod among 10,000, from its event to what the enforcement is told.
func BenchmarkChange(b *testing.B) {
	s := newState()
	all := make([]*entry, 10_000)
	for i := range all {
		p := onePod(i)
		all[i] = s.shared.entry(read(b, p))
	}
	s.replacePods(all)
	namespaces := map[string]labels.Set{}
	for _, e := range all {
		namespaces[e.Namespace] = nil
	}
	s.replaceNamespaces(namespaces)
	s.replacePolicies(nil)
	s.take()
	var events [2][]byte
	for i := range events {
		p := onePod(1)
		p.Labels["round"] = fmt.Sprint(i)
		events[i], _ = p.Marshal()
	}
	i := 0
	for b.Loop() {
		var p pod
		if err := p.Unmarshal(events[i%2]); err != nil {
			b.Fatal(err)
		}
		s.putPod(&p)
		if change, ok := s.take(); !ok || len(change.Pods) != 1 {
			b.Fatalf("got %+v", change)
		}
		i++
	}
}
