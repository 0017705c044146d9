package kube

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/testwait"
)

// answering is a source whose API server gives one answer to everything.
func answering(t *testing.T, contentType string, status int, body []byte) *Source {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}))
	t.Cleanup(server.Close)
	api, err := kubeclient.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(api, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRestored: no watch is begun at a revision that a restored API server has not reached yet.
func TestRestored(t *testing.T) {
	list := `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"50"}}`
	s := answering(t, runtime.ContentTypeJSON, http.StatusOK, []byte(list))
	for version, begun := range map[string]bool{"49": true, "50": true, "51": false, "100": false} {
		k := s.podKind(newState())
		watched := false
		k.Watch = func(context.Context, metav1.ListOptions) (watch.Interface, error) { watched = true; return nil, nil }
		_, err := s.watch(t.Context(), k, metav1.ListOptions{ResourceVersion: version})
		if watched != begun || apierrors.IsResourceExpired(err) == begun {
			t.Errorf("from version %s at version 50: watched %t, %v; want %t", version, watched, err, begun)
		}
	}
}

// TestListFails: a list that breaks off leaves nothing behind, and what an API server refuses is what it says.
func TestListFails(t *testing.T) {
	whole := encoded(t, variants()...)
	var with shared
	s := answering(t, runtime.ContentTypeProtobuf, http.StatusOK, whole[:len(whole)*2/3])
	list, err := s.listPods(t.Context(), metav1.ListOptions{}, &with)
	if err == nil || !strings.Contains(err.Error(), "read the list: unexpected EOF") || list != nil {
		t.Errorf("of a part of a list became %v, %v", list, err)
	}
	if with.mu.Lock(); len(with.templates) > 0 {
		t.Errorf("%d templates are left", len(with.templates))
	}
	status := []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`)
	s = answering(t, runtime.ContentTypeJSON, http.StatusForbidden, status)
	if _, err := s.listPods(t.Context(), metav1.ListOptions{}, &shared{}); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want that it is forbidden", err)
	}
}

// TestUndecodable: a watch's event that is no Pod is an error of the watch, after which the reflector begins again.
func TestUndecodable(t *testing.T) {
	frame := func(kind string, raw []byte) []byte {
		envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: raw}
		object, err := envelope.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		event := metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: append([]byte("k8s\x00"), object...)}}
		body, err := event.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return append([]byte{0, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	}
	p := onePod(1)
	good, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	body := append(frame("ADDED", good), frame("MODIFIED", []byte{0x0a, 0xff})...)
	s := answering(t, runtime.ContentTypeProtobuf+";stream=watch", http.StatusOK, body)
	w, err := s.podKind(newState()).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var got bytes.Buffer
	for range 2 {
		select {
		case e := <-w.ResultChan():
			fmt.Fprintf(&got, "%s %T ", e.Type, e.Object)
		case <-time.After(testwait.Limit):
			t.Fatal("no event")
		}
	}
	if got.String() != "ADDED *kube.pod ERROR *v1.Status " {
		t.Errorf("got the events %s", got.String())
	}
}
