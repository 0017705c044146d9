package target

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor/facts"
)

// TestReportHoldsNoSecrets: a lease file's network config has a key, and the bundle does not.
func TestReportHoldsNoSecrets(t *testing.T) {
	dir := t.TempDir()
	conf, leases := filepath.Join(dir, "net-conf.json"), filepath.Join(dir, "leases.json")
	for path, text := range map[string]string{
		conf:   `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":7,"PSK":"very-secret"}}`,
		leases: `{"leases":[{"node":"n1","backend":"vxlan","stacks":[{"subnet":"10.244.1.0/24","underlay":"192.0.2.1"}]}]}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := (&Flags{files: facts.Options{LeaseFile: leases, NetConf: conf, Node: "n1"}}).here()
	files, err := h.Report(t.Context(), conf+".none")
	if err == nil || len(files) > 0 {
		t.Errorf("a log that is not there: %d files, %v", len(files), err)
	}
	if files, err = h.Report(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	if err := files.WriteTar(&packed); err != nil {
		t.Fatal(err)
	}
	read, err := ReadBundle(&packed)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range read {
		names[m.Name] = true
		if strings.Contains(string(m.Data), "very-secret") || strings.Contains(string(m.Data), "dmVyeS1zZWNyZXQ") {
			t.Errorf("%s holds the key", m.Name)
		}
		if m.Name == "facts.json" && !strings.Contains(string(m.Data), `"VNI": 7`) {
			t.Error("facts.json has lost an option that is no secret")
		}
	}
	for _, want := range []string{"doctor.txt", "doctor.json", "facts.json", "plan.txt", "want.txt", "have.txt"} {
		if !names[want] {
			t.Errorf("the bundle has no %s", want)
		}
	}
}
