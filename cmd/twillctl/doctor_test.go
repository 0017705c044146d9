package main

import (
	"bytes"
	"context"
	"errors"
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
