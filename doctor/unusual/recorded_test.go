package unusual

import (
	"encoding/json"
	command "flag"
	"os"
	"reflect"
	"slices"
	"testing"
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
