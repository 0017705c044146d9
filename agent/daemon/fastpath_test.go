package daemon

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/subnet"
)

// TestWantedFastPath: the flag beats the network config, and what can have none says so.
func TestWantedFastPath(t *testing.T) {
	for _, test := range []struct {
		args, conf string
		want       backend.FastPath
		why        string
	}{
		{"", `{"Type":"vxlan"}`, backend.FastPath{}, ""},
		{"", `{"Type":"vxlan","FastPath":true,"SkipMark":4}`, backend.FastPath{On: true, SkipMark: 4}, ""},
		{"--fast-path=on", `{"Type":"host-gw","SkipMark":4}`, backend.FastPath{On: true, SkipMark: 4}, ""},
		{"--fast-path=off", `{"Type":"vxlan","FastPath":true}`, backend.FastPath{}, ""},
		{"--fast-path=on", `{"Type":"wireguard"}`, backend.FastPath{On: true}, "only the backends vxlan and host-gw"},
		{"", `{"Type":"wireguard","FastPath":true}`, backend.FastPath{}, "only the backends vxlan and host-gw"},
		{"--bridge=", `{"Type":"vxlan","FastPath":true}`, backend.FastPath{On: true}, "it knows pods by the ports"},
	} {
		o, err := parseFlags(strings.Fields(test.args), noEnv, nil)
		if err != nil {
			t.Fatal(err)
		}
		kind := strings.Split(test.conf, `"`)[3]
		b, _, err := registry.New(kind, nil, []byte(test.conf))
		if err != nil {
			t.Fatal(err)
		}
		got, why := o.wantedFastPath(b)
		if got != test.want || !strings.HasPrefix(why, test.why) || (why == "") != (test.why == "") {
			t.Errorf("%s with %s: %+v, %q", test.args, test.conf, got, why)
		}
	}
}

// TestWantedFastPathInTransition: a backend that takes another's place has the fast path that it has alone.
func TestWantedFastPathInTransition(t *testing.T) {
	o, err := parseFlags([]string{"--fast-path=on"}, noEnv, nil)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := subnet.ParseConfig([]byte(`{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}`))
	if err != nil {
		t.Fatal(err)
	}
	conf.Kept = []json.RawMessage{json.RawMessage(`{"Type":"vxlan"}`)}
	b, _, err := registry.NewKept(conf)
	if err != nil {
		t.Fatal(err)
	}
	if got, why := o.wantedFastPath(b); !got.On || why != "" {
		t.Errorf("%+v, %q", got, why)
	}
}

// TestNoBPFFileSystem: without one the agent works without a fast path, and knows why; there is nothing to remove.
func TestNoBPFFileSystem(t *testing.T) {
	dir := t.TempDir()
	o, err := parseFlags([]string{"--fast-path=on", "--bpffs=" + dir}, noEnv, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := registry.New("vxlan", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var e extras
	wanted, fast := openFastPath(o, b, &e)
	if why := fast.Blocked(); !wanted.On || why == "" || len(e.parts) > 0 {
		t.Errorf("%+v, %q, %d parts", wanted, why, len(e.parts))
	}
	if plan, err := removeFastPath(dir); len(plan) > 0 || err != nil {
		t.Errorf("removed %v, %v", plan, err)
	}
	o.dryRun = true
	if _, fast = openFastPath(o, b, &e); fast.Blocked() != "" || len(e.parts) > 0 {
		t.Errorf("a dry run: %q, %d parts", fast.Blocked(), len(e.parts))
	}
}

// TestLoadFastPath: a node that cannot load the programs says why in one line, and its agent starts.
func TestLoadFastPath(t *testing.T) {
	dir := t.TempDir()
	var log strings.Builder
	var p program
	if err := p.run(t.Context(), []string{"--load-fast-path", "--bpffs=" + dir}, nil, &log); err != nil {
		t.Error(err)
	}
	want := `level=WARN msg="the fast path's programs are not loaded" reason="no BPF file system is mounted at ` + dir
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, want) {
		t.Errorf("the log is\n%swant %s", text, want)
	}
}
