package kube

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/policy"
)

// BenchmarkTyped is a list of 30,000 pods until what is kept of each is there: as it is read, and with client-go's typed objects,
// of which nothing is kept but a policy.Pod.
func BenchmarkTyped(b *testing.B) {
	const pods, page = 30_000, 500
	for _, bench := range []struct {
		name string
		page int
		read func(*testing.B, *state, io.Reader) []*entry
	}{
		{"stream", pods, readStream}, {"typed", pods, readTyped}, {"typed-pages", page, readTyped},
		{"typed-stream", pods, readTypedStream},
	} {
		b.Run(bench.name, func(b *testing.B) {
			files := pages(b, pods, bench.page)
			b.ReportAllocs()
			before := heap()
			var kept *state
			var most int64
			for b.Loop() {
				kept = nil
				most = max(most, peak(func() {
					kept = newState()
					var all []*entry
					for _, f := range files {
						if _, err := f.Seek(0, io.SeekStart); err != nil {
							b.Fatal(err)
						}
						all = append(all, bench.read(b, kept, f)...)
					}
					kept.replacePods(all)
				}))
			}
			b.ReportMetric(float64(most-before)/1e6, "peak-MB")
			b.ReportMetric(float64(heap()-before)/1e6, "kept-MB")
			runtime.KeepAlive(kept)
		})
	}
}

// pages returns the pages of a list, which are files: what they have is no part of the heap.
func pages(b *testing.B, pods, size int) (files []*os.File) {
	all := make([]corev1.Pod, pods)
	for i := range all {
		all[i] = onePod(i)
	}
	for page := range slices.Chunk(all, size) {
		f, err := os.Create(filepath.Join(b.TempDir(), "page"))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { f.Close() })
		if _, err := f.Write(encoded(b, page...)); err != nil {
			b.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// peak returns the most that the heap held while f ran, garbage included.
func peak(f func()) (most int64) {
	runtime.GC()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}; ; {
			metrics.Read(sample)
			most = max(most, int64(sample[0].Value.Uint64()))
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	f()
	close(done)
	<-ended
	return most
}

func readStream(b *testing.B, to *state, body io.Reader) []*entry {
	list, err := readPods(body, &to.shared)
	if err != nil {
		b.Fatal(err)
	}
	return list.Items
}

// readTyped is what a reflector's list function would do that keeps nothing but what policies need.
func readTyped(b *testing.B, _ *state, body io.Reader) []*entry {
	group := podResource.GroupVersion()
	c, err := rest.RESTClientForConfigAndClient(&rest.Config{Host: "http://api", APIPath: "/api", ContentConfig: rest.ContentConfig{
		GroupVersion: &group, NegotiatedSerializer: scheme.Codecs.WithoutConversion(), ContentType: apiruntime.ContentTypeProtobuf,
	}}, &http.Client{Transport: answer{body}})
	if err != nil {
		b.Fatal(err)
	}
	var list corev1.PodList
	if err := c.Get().Resource("pods").Do(b.Context()).Into(&list); err != nil {
		b.Fatal(err)
	}
	all := make([]*entry, len(list.Items))
	for i := range list.Items {
		all[i] = fromTyped(&list.Items[i])
	}
	return all
}

// readTypedStream makes a typed object of each pod of a list while that arrives.
func readTypedStream(b *testing.B, _ *state, body io.Reader) (all []*entry) {
	_, err := readList(body, func(item []byte) error {
		var p corev1.Pod
		err := p.Unmarshal(item)
		all = append(all, fromTyped(&p))
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return all
}

func fromTyped(p *corev1.Pod) *entry {
	now := &entry{policy.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Created: p.CreationTimestamp.Time,
		Labels: p.Labels, Node: p.Spec.NodeName}, &template{pods: 2}}
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if port.Name != "" {
				now.Ports = append(now.Ports, policy.Port{Name: port.Name, Number: uint16(port.ContainerPort),
					Protocol: policy.Protocol(port.Protocol)})
			}
		}
	}
	return now
}

// answer is an API server with one answer.
type answer struct{ io.Reader }

// RoundTrip implements http.RoundTripper.
func (a answer) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {apiruntime.ContentTypeProtobuf}},
		Body: io.NopCloser(a)}, nil
}
