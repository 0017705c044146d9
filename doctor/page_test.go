package doctor_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	docs "github.com/twill-net/twill/Documentation"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab/faults"
)

// TestCatalogue: the page describes the kinds that the code has, each once and in full.
func TestCatalogue(t *testing.T) {
	described := map[string]bool{}
	for _, k := range doctor.Catalogue() {
		if described[k.ID] {
			t.Errorf("%s is on the page twice", k.ID)
		}
		if k.ID == "" || !slices.Contains([]doctor.Severity{doctor.Broken, doctor.Risk, doctor.Intended}, k.Severity) || k.Title == "" || k.Why == "" || k.Fix == "" {
			t.Errorf("the page lacks a part of %+v", k)
		}
		described[k.ID] = true
	}
	for name, id := range constants(t) {
		if !described[id] {
			t.Errorf("Documentation/findings.md does not describe %s, %q", name, id)
		}
		delete(described, id)
	}
	for id := range described {
		t.Errorf("Documentation/findings.md describes %s, which kind.go does not have", id)
	}
}

// constants are the kinds that kind.go declares, by their names.
func constants(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("kind.go")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+)\s+kind = "(.+)"$`).FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = m[2]
	}
	return all
}

// TestAdvice: commands name what is installed, and do not turn off what Services need.
func TestAdvice(t *testing.T) {
	manifest, err := os.ReadFile("../Documentation/twill.yml")
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.ReplaceAll(string(manifest), `"`, "")
	if !strings.Contains(plain, "kind: ServiceAccount\nmetadata:\n  name: twill\n  namespace: kube-twill\n") {
		t.Fatal("the manifest has no ServiceAccount twill in kube-twill: this test proves nothing")
	}
	for _, got := range regexp.MustCompile(`system:serviceaccount:[a-z:-]*`).FindAllString(docs.Findings, -1) {
		if got != "system:serviceaccount:kube-twill:twill" {
			t.Errorf("the page names the account %s", got)
		}
	}
	for _, wrong := range []string{"systemctl start twilld", "bridge-nf-call-iptables=0"} {
		if strings.Contains(docs.Findings, wrong) {
			t.Errorf("the page advises %s", wrong)
		}
	}
}

// TestFaultsNameFindings: what a fault is expected to be is something that can be found.
func TestFaultsNameFindings(t *testing.T) {
	names, kinds := map[string]bool{}, map[string]bool{"": true} // some faults show on no node
	for _, k := range doctor.Catalogue() {
		kinds[k.ID] = true
	}
	for _, f := range faults.All() {
		if names[f.Name] {
			t.Errorf("two faults are named %s", f.Name)
		}
		names[f.Name] = true
		if !kinds[f.Finding] {
			t.Errorf("%s: there is no finding %q", f.Name, f.Finding)
		}
	}
	if len(names) < 50 {
		t.Errorf("%d faults, want at least 50", len(names))
	}
}
