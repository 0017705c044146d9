package unusual

import (
	"encoding/json"
	command "flag"
	"fmt"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

var update = command.Bool("update", false, "write recorded.json anew, of this kernel")

// TestRecorded: what is recorded is what a kernel of that version has, as far as that has the same parts.
func TestRecorded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	f, err := makeReference()
	if err != nil {
		t.Fatal(err)
	}
	made := f.record()
	if *update {
		data, err := json.MarshalIndent(made, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("recorded.json", append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		recordedJSON = data
	}
	r, err := replay()
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(r.rules, f.rules) {
		t.Errorf("rules %v, want %v", r.rules, f.rules)
	}
	for name, value := range made.Sysctls {
		if p, ok := r.sysctls[name]; made.Release == r.release && ok && p.value != value {
			t.Errorf("%s is recorded as %s, and is %s", name, p.value, value)
		}
	}
}

// recordedOnly has the test compare with what is recorded, as an agent's container does.
func recordedOnly(t *testing.T) {
	t.Helper()
	r, err := replay()
	if err != nil {
		t.Fatal(err)
	}
	made := reference
	reference = func() (*fresh, error) { return r, nil }
	t.Cleanup(func() { reference = made })
}

// TestInjectionsByRecord: who may not make a namespace finds the same alterations, and nothing else.
func TestInjectionsByRecord(t *testing.T) {
	recordedOnly(t)
	inNamespace(t, func() {
		bridged(t)
		if all := list(t); len(all) > 0 {
			t.Errorf("nobody altered anything:\n%s", print(all))
		}
		for _, i := range injections {
			inject(t, i.kind, i.command, i.text, i.about)
		}
		for _, i := range deviceInjections {
			inject(t, i.kind, i.command, i.text, "")
		}
		want := []string{"devices and sysctls are compared with those of Linux 6.18, not of this kernel: that takes CAP_SYS_ADMIN"}
		if _, unread := List(t.Context()); !slices.Equal(unread, want) {
			t.Errorf("not looked at: %q, want %q", unread, want)
		}
	})
}

// recordedKinds are the kinds of devices that are recorded, if the kernel has them.
var recordedKinds = []string{"veth", "bridge", "vxlan", "tun", "dummy", "ipip", "sit", "wireguard", "vlan", "macvlan", "ipvlan"}

// ofMachine are sysctls whose value in a new namespace is the machine's: by its memory, or as its administrator chose.
var ofMachine = regexp.MustCompile(`_(rmem|wmem|buckets|syn_backlog|entries|limit_output_bytes|congestion_control)$|^core/|^netfilter/nf_log/`)

// record returns what recorded.json is to have.
func (f *fresh) record() record {
	r := record{Release: kernelVersion(), Rules: f.rules, Sysctls: values(f.sysctls), Untold: slices.Sorted(slices.Values(f.untold)),
		Device: values(f.like("", "veth").sysctls), Devices: map[string]recorded{}}
	maps.DeleteFunc(r.Sysctls, func(name, _ string) bool { return ofMachine.MatchString(name) })
	all := map[string]sample{"lo": f.lo}
	for _, kind := range recordedKinds {
		if s := f.like("", kind); s.link.kind == kind {
			all[kind] = s
		}
	}
	for name, s := range all {
		d := recorded{Link: s.link.Link, Port: s.port.Link, Sysctls: values(s.sysctls)}
		maps.DeleteFunc(d.Sysctls, func(name, value string) bool { return r.Device[name] == value })
		r.Devices[name] = d
	}
	return r
}

// values returns those of parameters that are somebody's settings.
func values(all map[string]parameter) map[string]string {
	found := map[string]string{}
	for name, p := range all {
		if p.can && !slices.Contains(random, path.Base(name)) {
			found[name] = p.value
		}
	}
	return found
}

// kernelVersion returns the first two numbers of this kernel's version.
func kernelVersion() string {
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) == nil {
		_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	}
	return fmt.Sprintf("%d.%d", major, minor)
}
