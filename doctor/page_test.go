package doctor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab/faults"
)

const pages = "../Documentation/doctor"

// TestPages: each kind of finding has its page, and nothing else has one. TWILL_WRITE=1 writes them.
func TestPages(t *testing.T) {
	makers, known := map[string][]string{}, map[string]bool{"README.md": true}
	for _, f := range faults.All() {
		makers[f.Finding] = append(makers[f.Finding], f.Name)
	}
	for _, k := range doctor.Catalogue() {
		if known[k.ID+".md"] {
			t.Errorf("%s is in the catalogue twice", k.ID)
		}
		if k.ID == "" || k.Severity == "" || k.Title == "" || k.Why == "" || k.Fix == "" || k.See == "" {
			t.Fatalf("the catalogue lacks a field of %+v", k)
		}
		known[k.ID+".md"] = true
		want, path := page(k, makers[k.ID]), filepath.Join(pages, k.ID+".md")
		if os.Getenv("TWILL_WRITE") != "" {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(path); err != nil || string(have) != want {
			t.Errorf("%s is not what the catalogue says (error: %v): TWILL_WRITE=1 go test ./doctor -run TestPages", path, err)
		}
	}
	checkIndex(t)
	entries, err := os.ReadDir(pages)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !known[e.Name()] {
			t.Errorf("%s is the page of no finding", e.Name())
		}
	}
}

// checkIndex: the README ends with all findings, in the order of the catalogue.
func checkIndex(t *testing.T) {
	t.Helper()
	const marker = "<!-- findings -->\n"
	path := filepath.Join(pages, "README.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, have, _ := strings.Cut(string(data), marker)
	want := "| ID | what is wrong | severity |\n|---|---|---|\n"
	for _, k := range doctor.Catalogue() {
		want += fmt.Sprintf("| [%s](%[1]s.md) | %s | %s |\n", k.ID, k.Title, k.Severity)
	}
	if os.Getenv("TWILL_WRITE") != "" {
		have = want
		if err := os.WriteFile(path, []byte(head+marker+want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have != want {
		t.Errorf("%s does not end with what the catalogue says: TWILL_WRITE=1 go test ./doctor -run TestPages", path)
	}
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
	account := regexp.MustCompile(`system:serviceaccount:[a-z:-]*`)
	for _, k := range doctor.Catalogue() {
		text := page(k, nil)
		if got := account.FindString(text); got != "" && got != "system:serviceaccount:kube-twill:twill" {
			t.Errorf("%s names the account %s", k.ID, got)
		}
		for _, wrong := range []string{"systemctl start twilld", "bridge-nf-call-iptables=0"} {
			if strings.Contains(text, wrong) {
				t.Errorf("%s advises %s", k.ID, wrong)
			}
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

// page returns the documentation of one kind of finding in Markdown. faults are those of the lab's library that
// cause it.
func page(k doctor.Kind, faults []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s.\n\n", k.ID, sentence(k.Title))
	what := map[doctor.Severity]string{doctor.Broken: "Pods are cut off, or new ones do not start.",
		doctor.Risk: "It may work now; it will not always.", doctor.Intended: "It is as somebody asked, and nothing is wrong."}
	fmt.Fprintf(&b, "**Severity:** %s. %s\n\n", k.Severity, what[k.Severity])
	fmt.Fprintf(&b, "## Why it hurts\n\n%s.\n\n## How to fix it\n\n%s.\n\n", sentence(k.Why), sentence(k.Fix))
	fmt.Fprintf(&b, "The finding itself names the object and, where there is one, the exact command.\n\n## Look by hand\n\n```\n%s\n```\n",
		strings.ReplaceAll(k.See, "; ", "\n"))
	if len(faults) > 0 {
		fmt.Fprintf(&b, "\n## Reproduce it\n\nIn a lab, by the faults of lab/faults: %s.\n", strings.Join(faults, ", "))
	}
	return b.String()
}

// sentence capitalizes the first letter, unless text begins with a command or an ID.
func sentence(text string) string {
	first, _, _ := strings.Cut(text, " ")
	if strings.ContainsAny(first, "-./_") || slices.Contains([]string{"ip", "sysctl", "iptables"}, first) {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
