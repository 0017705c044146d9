package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/target"
)

// TestLabFrom: a lab of a report alone is broken as the one was that the report is of.
func TestLabFrom(t *testing.T) {
	const name = "ctlfrom"
	path := filepath.Join(t.TempDir(), "report.tar.gz")
	down := func() {
		if _, err := run(t, "lab", "down", "--name", name); err != nil {
			t.Error(err)
		}
	}
	defer down()
	if out, err := run(t, "lab", "up", "--name", name, "--nodes", "2", "--pods", "1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l, err := lab.Open("", name)
	if err != nil {
		t.Fatal(err)
	}
	node, peer := l.Nodes()[0], l.Nodes()[1].Subnets()[0].String()
	testwait.Nil(t, "the checkpoint has the peer", func() error {
		if saved, err := os.ReadFile(node.CheckpointFile()); err != nil || !strings.Contains(string(saved), peer) {
			return fmt.Errorf("%s: %v", saved, err)
		}
		return nil
	})
	if err := node.KillAgent(); err != nil {
		t.Fatal(err)
	}
	if _, err := node.Exec(t.Context(), "ip", "route", "replace", "blackhole", peer); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, "report", "--lab", name, "node1", "--file", path); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	down()
	out, err := run(t, "lab", "up", "--name", name, "--from", path)
	if err != nil || !strings.Contains(out, "not carried over: secrets and keys: they are made anew") {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err = run(t, "doctor", "--lab", name, "node1")
	if _, first, _ := strings.Cut(out, "\n✗ "); !errors.Is(err, errFindings) || !strings.HasPrefix(first, "route-altered") ||
		!strings.Contains(first, "route blackhole "+peer) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestLabFromRefuses(t *testing.T) {
	dir := t.TempDir()
	text, earlier := filepath.Join(dir, "text"), filepath.Join(dir, "earlier.tar.gz")
	if err := os.WriteFile(text, []byte("no report"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeNew(earlier, target.Bundle{{Name: "facts.json", Data: []byte("{}")}}.WriteTar); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"want a file that twillctl report wrote":            {"--from", text},
		"it was written by an earlier twillctl":             {"--from", earlier},
		"open the report: ":                                 {"--from", filepath.Join(dir, "none")},
		"[from nodes] were all set":                         {"--from", text, "--nodes", "2"},
		"if any flags in the group [from net-conf] are set": {"--from", text, "--net-conf", text},
	} {
		if _, err := run(t, append([]string{"lab", "up", "--name", "ctlfromnone"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}
