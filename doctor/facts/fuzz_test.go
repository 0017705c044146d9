package facts

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
)

// FuzzAnswers: whatever is said at the agent's port, it can be written as JSON.
func FuzzAnswers(f *testing.F) {
	f.Add("twill_a 1\ntwill_a{b=\"c\"} 2\ntwill_build_info{version=\"v1\"} 1\n")
	f.Add("twill_a NaN\ntwill_b +Inf\ntwill_c 1e308\ntwill_c 1e308\n")
	f.Add(`{"runner":{"running":true},"fastPath":{"on":false,"why":"x"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		a := doctor.Agent{Metrics: metrics(text), Version: buildOf(text)}
		said := answerOf(text)
		a.Runner, a.Policies, a.FastPath = said.Runner, said.Policies, said.FastPath
		if _, err := json.Marshal(a); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		for name := range a.Metrics {
			if !strings.HasPrefix(name, "twill_") {
				t.Errorf("%q has the metric %q", text, name)
			}
		}
	})
}

// FuzzConf: other projects' CNI configs lie in the runtime's directory too.
func FuzzConf(f *testing.F) {
	f.Add([]byte(`{"name":"cbr0","plugins":[{"type":"twill","subnetFile":"/x","ipam":{"dataDir":"/y"}}]}`))
	f.Add([]byte(`{"type":"bridge"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, c := parseConf(doctor.ConfFile{Name: "10-x.conflist"}, data)
		if file.Error == "" && len(c.Plugins) == 0 && c.Type == "" {
			t.Errorf("%q has no plugins, and no error", data)
		}
		reservationsDir(c)
	})
}

// FuzzOwnedBy: a status without a line of users belongs to nobody who is believed.
func FuzzOwnedBy(f *testing.F) {
	f.Add("Name:\ttwilld\nUid:\t0\t0\t0\t0\n")
	f.Add("Name:\tx\nUid:\n")
	f.Add("Name:\tx\nUid:\t65534\t0\t0\t0\n")
	f.Fuzz(func(t *testing.T, status string) {
		if _, ids, ok := strings.Cut(status, "Uid:"); ownedBy(status, "0") && (!ok || !strings.Contains(ids, "0")) {
			t.Errorf("%q is believed", status)
		}
	})
}
