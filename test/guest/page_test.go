package guest

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// page has the exemptions between two markers.
const page, begin, end = "../../Documentation/guest.md", "<!-- exemptions -->\n", "<!-- end of exemptions -->\n"

// TestPage: the page has the exemptions as they are. TWILL_WRITE=1 writes them.
func TestPage(t *testing.T) {
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no lines %q and %q", page, begin, end)
	}
	want := "\n| parameter | becomes | after `twilld --cleanup` |\n|---|---|---|\n"
	for _, e := range exemptions {
		want += fmt.Sprintf("| %s | %s | %s |\n", e.what, e.becomes, e.after)
	}
	want += "\n"
	switch {
	case old == want:
	case os.Getenv("TWILL_WRITE") == "":
		t.Fatalf("%s is not what the list says: TWILL_WRITE=1 go test ./test/guest -run TestPage", page)
	default:
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
