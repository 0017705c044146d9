package kube

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// framed is an event as the API server sends it.
func framed(t testing.TB, kind string, o runtime.Object) []byte {
	t.Helper()
	e := metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: encode(t, o)}}
	data, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)
}

func metadata(n *corev1.Node) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: n.ObjectMeta}
}

// TestChanges reads a watch in one piece, in single bytes, and with an event larger than the reader's buffer.
func TestChanges(t *testing.T) {
	large := flannelNode(3)
	large.Annotations["other/annotation"] = strings.Repeat("x", 100<<10)
	end := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "99"}}
	stream := bytes.Join([][]byte{framed(t, added, metadata(flannelNode(1))), framed(t, modified, metadata(flannelNode(2))),
		framed(t, deleted, metadata(large)), framed(t, bookmark, end)}, nil)
	for name, r := range map[string]io.Reader{"one piece": bytes.NewReader(stream), "bytes": iotest.OneByteReader(bytes.NewReader(stream))} {
		c := newChanges(lean{prefix: note}, io.NopCloser(r))
		var got []string
		batches := 0
		for err := error(nil); ; batches++ {
			var all []change
			if all, err = c.batch(); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Errorf("%s: %v", name, err)
				}
				break
			}
			for _, e := range all {
				got = append(got, e.kind+" "+e.name+e.version+" "+e.v4.public)
			}
		}
		want := "ADDED kubetest-peer-001 192.0.2.1,MODIFIED kubetest-peer-002 192.0.2.2,DELETED kubetest-peer-003 192.0.2.3,BOOKMARK 99 "
		if text := strings.Join(got, ","); text != want {
			t.Errorf("%s: got %s", name, text)
		}
		if name == "one piece" && batches > 3 {
			t.Errorf("%d batches for two events that came together, a large one, and one", batches)
		}
	}
}

// TestChangesEnd: an end in the middle is no end, and an error of the API server is one.
func TestChangesEnd(t *testing.T) {
	whole := framed(t, added, metadata(flannelNode(1)))
	for _, size := range []int{2, 4, len(whole) - 1} {
		_, err := newChanges(lean{prefix: note}, io.NopCloser(bytes.NewReader(whole[:size]))).batch()
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d of %d bytes: got error %v", size, len(whole), err)
		}
	}
	gone := framed(t, failed, &metav1.Status{Code: 410, Message: "too old resource version", Reason: metav1.StatusReasonExpired})
	_, err := newChanges(lean{prefix: note}, io.NopCloser(bytes.NewReader(gone))).batch()
	if !answered(err, 410) || err.Error() != "too old resource version" {
		t.Errorf("got error %v", err)
	}
	huge := binary.BigEndian.AppendUint32(nil, 1<<30)
	if _, err := newChanges(lean{prefix: note}, io.NopCloser(bytes.NewReader(huge))).batch(); err == nil || !strings.Contains(err.Error(), "an event of 1073741824 bytes") {
		t.Errorf("got error %v", err)
	}
}

// FuzzChanges: whatever comes, it is an error or events, and no crash.
func FuzzChanges(f *testing.F) {
	f.Add(framed(f, modified, metadata(largeNode())))
	f.Add(framed(f, failed, &metav1.Status{Code: 410, Message: "too old"}))
	f.Fuzz(func(_ *testing.T, data []byte) {
		c := newChanges(lean{note, "kubetest-peer-001"}, io.NopCloser(bytes.NewReader(data)))
		for _, err := c.batch(); err == nil; _, err = c.batch() {
		}
	})
}
