package target

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"unicode"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/plain"
)

// FuzzReadBundle: what a node sends as its report stays within the bounds.
func FuzzReadBundle(f *testing.F) {
	for _, files := range []Bundle{{{"facts.json", []byte("{}")}, {"plan.txt", nil}}, {{"../x.txt", nil}}} {
		var b bytes.Buffer
		if err := files.WriteTar(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		files, err := ReadBundle(bytes.NewReader(data))
		if len(files) > maxMembers || err != nil && len(files) > 0 {
			t.Errorf("%d files, %v", len(files), err)
		}
		for _, m := range files {
			if !memberName.MatchString(m.Name) {
				t.Errorf("a member %q", m.Name)
			}
		}
	})
}

// FuzzAnswer: whatever a node says as JSON is shown, without control characters, or is an error.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"schema":1,"nodes":[{"node":"n1","peers":[{"node":"n2","reason":"x"}],"findings":["a"]}],"silent":["n3"]}`))
	f.Add([]byte(`{"schema":1,"node":"n1","findings":[{"id":"no-lease","count":3,"fix":"\u001b[2J"}],"unread":["x"]}`))
	f.Add([]byte(`{"there":[{"node":"a","place":"route"}],"back":[],"stopped":{"node":"b"},"live":{"there":[{"host":"a","dev":"x","packets":1}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		w := plain.NewWriter(&out)
		var status doctor.StatusReport
		if decode("n1", data, &status) == nil {
			_, _ = status.WriteText(w), status.WriteJSON(w)
		}
		var diagnosis doctor.Diagnosis
		if decode("n1", data, &diagnosis) == nil {
			_, _, _ = diagnosis.WriteText(w), diagnosis.WriteJSON(w), diagnosis.Failed()
			s := alone(diagnosis)
			_, _, _ = s.WriteText(w), s.WriteJSON(w), s.Failed()
		}
		var part doctor.Trace
		if decode("n1", data, &part) == nil {
			trace := doctor.Join(part, part)
			_, _, _ = trace.WriteText(w), trace.WriteJSON(w), trace.Failed()
		}
		if bad := strings.IndexFunc(out.String(), func(r rune) bool { return !unicode.IsGraphic(r) && r != '\n' && r != '\t' }); bad >= 0 {
			t.Errorf("%q at %d", out.String(), bad)
		}
	})
}

// FuzzPods: kubectl's list holds what users of the cluster wrote.
func FuzzPods(f *testing.F) {
	f.Add([]byte(`{"items":[{"kind":"DaemonSet","metadata":{"name":"twill","uid":"1"}},{"kind":"Pod","metadata":{"name":"twill-abc",
"ownerReferences":[{"kind":"DaemonSet","uid":"1","controller":true}]},"spec":{"nodeName":"n1","hostNetwork":true},"status":{"phase":"Running"}}]}`))
	f.Add([]byte(`{"items":[{"status":{"phase":"Running","podIPs":[{"ip":"10.244.1.5"},{"ip":"x"}]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var all struct{ Items []pod }
		if json.Unmarshal(data, &all) != nil {
			return
		}
		set, err := Cluster{}.daemonSet(all.Items)
		for _, p := range all.Items {
			if err == nil && p.ownedBy(set) && p.Kind != "Pod" {
				t.Errorf("%+v is a pod", p)
			}
			if a, ok := p.address("n1", netip.Addr{}); ok && (!a.IsValid() || p.Spec.HostNetwork) {
				t.Errorf("%+v has the address %s", p, a)
			}
		}
	})
}
