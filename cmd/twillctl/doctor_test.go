package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := root()
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(context.Background())
	return out.String(), err
}

// TestNoLease: on a machine without a lease the commands say so, and do not fail in other ways.
func TestNoLease(t *testing.T) {
	dir := t.TempDir()
	where := []string{"--checkpoint-file", filepath.Join(dir, "checkpoint.json"), "--subnet-file", filepath.Join(dir, "subnet.env"), "--cni-conf-dir", dir}
	out, err := run(t, append([]string{"doctor"}, where...)...)
	if !errors.Is(err, errFindings) || !strings.Contains(out, "no-lease: this node has no lease  ← most likely the cause") {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	if out, err := run(t, append([]string{"plan"}, where...)...); err == nil || !strings.HasPrefix(err.Error(), "no checkpoint at "+dir) {
		t.Errorf("plan: %v\n%s", err, out)
	}
	if out, err := run(t, append([]string{"status", "-o", "json"}, where...)...); !errors.Is(err, errFindings) || !strings.Contains(out, `"no-lease"`) {
		t.Errorf("status: %v\n%s", err, out)
	}
}

// TestReportHoldsNoSecrets: a lease file's network config has a key, and the bundle does not.
func TestReportHoldsNoSecrets(t *testing.T) {
	dir := t.TempDir()
	conf, leases, bundle := filepath.Join(dir, "net-conf.json"), filepath.Join(dir, "leases.json"), filepath.Join(dir, "report.tar.gz")
	for path, text := range map[string]string{
		conf:   `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":7,"PSK":"very-secret"}}`,
		leases: `{"leases":[{"node":"n1","backend":"vxlan","stacks":[{"subnet":"10.244.1.0/24","underlay":"192.0.2.1"}]}]}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var to target
	to.options.LeaseFile, to.options.NetConf, to.options.Node = leases, conf, "n1"
	files, err := to.bundle(t.Context(), nil, conf+".none")
	if err == nil || len(files) > 0 {
		t.Errorf("a log that is not there: %d files, %v", len(files), err)
	}
	if files, err = to.bundle(t.Context(), nil, ""); err != nil {
		t.Fatal(err)
	}
	if err := writeNew(bundle, tarOf(files)); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	f, err := os.Open(bundle)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	packed, err := readTar(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range packed {
		names[m.name] = true
		if strings.Contains(string(m.data), "very-secret") || strings.Contains(string(m.data), "dmVyeS1zZWNyZXQ") {
			t.Errorf("%s holds the key", m.name)
		}
		if m.name == "facts.json" && !strings.Contains(string(m.data), `"VNI": 7`) {
			t.Error("facts.json has lost an option that is no secret")
		}
	}
	for _, want := range []string{"doctor.txt", "doctor.json", "facts.json", "plan.txt", "want.txt", "have.txt"} {
		if !names[want] {
			t.Errorf("the bundle has no %s", want)
		}
	}
}
