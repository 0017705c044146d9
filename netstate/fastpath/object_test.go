package fastpath

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// TestObject: the object is what the pinned compiler makes of the source.
func TestObject(t *testing.T) {
	for _, tool := range []string{"clang-14", "llvm-strip-14"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs Debian bookworm's clang and llvm")
		}
	}
	out := filepath.Join(t.TempDir(), "fastpath.o")
	if text, err := exec.Command("bpf/build", out).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	made, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made, object) {
		t.Error("bpf/fastpath.o is not of this source: run go generate ./netstate/fastpath")
	}
}

// TestLayout: both sides mean the same by what is in the maps.
func TestLayout(t *testing.T) {
	spec, err := collection()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct{ key, value any }{
		shortcutsMap: {shortcutKey{}, shortcut{}}, podsMap: {[16]byte{}, pod{}}, settingsMap: {uint32(0), parameters{}},
		clockMap: {uint32(0), uint64(0)}, countsMap: {uint32(0), count{}},
	} {
		m := spec.Maps[name]
		if m == nil || int(m.KeySize) != binary.Size(want.key) || int(m.ValueSize) != binary.Size(want.value) {
			t.Errorf("map %s is %v: want keys of %d bytes and values of %d", name, m, binary.Size(want.key),
				binary.Size(want.value))
		}
	}
	names, err := results()
	if err != nil {
		t.Fatal(err)
	}
	for i, mode := range modes {
		if names[i] != string(mode) {
			t.Errorf("result %d is %s: want the mode %s", i, names[i], mode)
		}
	}
	for _, name := range []string{"refreshed", "failed", "no-ct", "not-ours"} {
		if !slices.Contains(names, name) {
			t.Errorf("there is no result %s among %v", name, names)
		}
	}
	for _, name := range programs {
		if spec.Programs[string(name)] == nil {
			t.Errorf("there is no program %s", name)
		}
	}
	if spec.Programs[string(netstate.FromPod)].License != "Dual BSD/GPL" {
		t.Error("kernel functions of conntrack take a licence that goes with the GPL")
	}
}
