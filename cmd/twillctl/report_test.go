package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/target"
)

// TestReportHoldsRules: a report names the rule that lost packets, also one that nobody would find in the node's tables.
func TestReportHoldsRules(t *testing.T) {
	const name = "ctlreport"
	path := filepath.Join(t.TempDir(), "report.tar.gz")
	defer func() {
		if _, err := run(t, "lab", "down", "--name", name); err != nil {
			t.Error(err)
		}
	}()
	if out, err := run(t, "lab", "up", "--name", name, "--nodes", "2", "--pods", "1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l, err := lab.Open("", name)
	if err != nil {
		t.Fatal(err)
	}
	const rules = "add table inet fw; add chain inet fw f { type filter hook forward priority 0; }; " +
		"add rule inet fw f meta length 0-2000 icmp type echo-request drop"
	if _, err := l.Nodes()[0].Exec(t.Context(), "nft", rules); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, "report", "--lab", name, "node1", "--file", path); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	members, err := target.ReadReport(path)
	if err != nil {
		t.Fatal(err)
	}
	var losses []locate.Loss
	for _, m := range members {
		if m.Name == "losses.json" {
			err = json.Unmarshal(m.Data, &losses)
		}
	}
	if err != nil || len(losses) == 0 || losses[0].By.Table != "fw" || losses[0].By.Chain != "f" || !losses[0].Stopped {
		t.Errorf("%v: %+v", err, losses)
	}
	report, err := target.OpenReport(path, "")
	if err != nil {
		t.Fatal(err)
	}
	found, err := report.Doctor(t.Context(), doctor.NoProbes)
	if err != nil || found.First == nil || found.First.ID != "packet-lost" {
		t.Errorf("%v: %+v", err, found)
	}
}
