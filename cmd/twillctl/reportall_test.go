package main

import (
	"archive/tar"
	"bytes"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/target"
)

// TestReportAll: each node's report is a file that twillctl reads, and a node without one is named with the reason, also one
// whose name would lead elsewhere.
func TestReportAll(t *testing.T) {
	k := newFakeKubectl(t, map[string]string{"exec": packed(t, target.Member{Name: "plan.txt", Data: []byte("nothing")}), "log": "a line\n",
		"get.json": list(ownSet, podJSON("twill-a", "n1", "DaemonSet", "1"), podJSON("twill-b", "n2", "DaemonSet", "1"),
			podJSON("twill-c", "../n3", "DaemonSet", "1"))})
	out, code := k.run("report", "--all")
	if code != 1 || !strings.Contains(out, "twill-reports.tar: 2 nodes\n") || !strings.Contains(out, "n1: 3 files\n") {
		t.Fatalf("%d: %s", code, out)
	}
	raw, err := os.ReadFile(filepath.Join(k.dir, "twill-reports.tar"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[strings.TrimPrefix(h.Name, "twill-reports/")], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	if names := slices.Sorted(maps.Keys(files)); !slices.Equal(names, []string{"missing.txt", "n1.tar.gz", "n2.tar.gz"}) {
		t.Errorf("files %q", names)
	}
	if text := string(files["missing.txt"]); !strings.HasPrefix(text, "../n3: ") {
		t.Errorf("missing.txt: %q", text)
	}
	for _, name := range []string{"n1.tar.gz", "n2.tar.gz"} {
		b, err := target.ReadBundle(bytes.NewReader(files[name]))
		if err != nil || len(b) != 3 || b[0].Name != "plan.txt" {
			t.Errorf("%s: %v, %v", name, b, err)
		}
	}
	for args, want := range map[string]string{
		"report --all n1":     "n1: with --all no node can be named",
		"report --all --html": "--html and --all: give one",
	} {
		if out, code := k.run(strings.Fields(args)...); code != 2 || !strings.Contains(out, want) {
			t.Errorf("%s: %d, %s", args, code, out)
		}
	}
	if out, err := run(t, "report", "--all", "--file", filepath.Join(t.TempDir(), "x")); err == nil ||
		!strings.Contains(err.Error(), "--all: this node is the only one") {
		t.Errorf("%v: %s", err, out)
	}
}
