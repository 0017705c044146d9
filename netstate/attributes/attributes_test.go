package attributes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/reference"
)

// TestRows: every row says what its fate asks for, and no attribute has two rows in one place.
func TestRows(t *testing.T) {
	count := map[Fate]int{}
	for _, table := range All() {
		seen := map[uint16]bool{}
		for _, a := range table.Rows {
			count[a.Fate]++
			name := table.Object + " " + table.Of + " " + table.Prefix + a.Name
			if seen[a.ID] {
				t.Errorf("%s: the table has two rows for number %d", name, a.ID)
			}
			seen[a.ID] = true
			switch {
			case a.Name == "":
				t.Errorf("%s: number %d has no name", name, a.ID)
			case a.Fate == Pinned && a.Field == "" && a.Word == "":
				t.Errorf("%s has neither a field nor a word for Extra", name)
			case a.Fate != Pinned && a.Note == "":
				t.Errorf("%s is %s: nobody says why", name, a.Fate)
			case a.Fate != Pinned && (a.Field != "" || a.Value != 0):
				t.Errorf("%s is %s and has a wanted value", name, a.Fate)
			}
		}
	}
	if count[Pinned] < 100 || count[Derived] < 100 || count[Free] < 20 {
		t.Errorf("the tables have %v rows", count)
	}
}

// TestFind: what one type of device has of its own comes before what all have.
func TestFind(t *testing.T) {
	for kind, want := range map[string]uint64{"vxlan": 0, "bridge": 0, "tun": 1, "ipip": 1, "wireguard": 1} {
		a, ok := Find(Of("link", kind), Bits, nil, 7)
		if !ok || a.Name != "NOARP" || a.Value != want {
			t.Errorf("%s: NOARP is %+v, %t, want %d", kind, a, ok, want)
		}
	}
	if a, ok := Find(Of("link", "bridge"), Attributes, []uint16{linkInfo, infoData}, 5); !ok || a.Word != "stp_state" {
		t.Errorf("a bridge's attribute 5 is %+v, %t", a, ok)
	}
	if a, ok := Find(Of("link", "wireguard"), Attributes, []uint16{linkInfo, infoData}, 5); ok {
		t.Errorf("WireGuard's attribute 5 is %+v", a)
	}
}

// TestAttributesReference makes the page of all attributes.
func TestAttributesReference(t *testing.T) {
	reference.Write(t, "attributes.md", "# All attributes\n\n[What is kept, and what is free](../drift.md) explains this list.\n"+tables())
}

func tables() string {
	var b strings.Builder
	for _, table := range All() {
		what := table.Object
		if table.Of != "" {
			what = table.Of + " " + what
		}
		fmt.Fprintf(&b, "\n## %s: %s\n\n| attribute | | |\n|---|---|---|\n", what, table.Where)
		for _, a := range table.Rows {
			fmt.Fprintf(&b, "| %s%s | %s | %s |\n", table.Prefix, a.Name, a.Fate, a.says())
		}
	}
	return b.String()
}

// says returns what is kept, or why it is not.
func (a Attribute) says() string {
	switch {
	case a.Note != "":
		return a.Note
	case a.Field != "":
		return "field " + a.Field
	case a.Form == Address, a.Form == Device:
		return "none"
	case a.Form == Network && a.Value != 0:
		return fmt.Sprintf("%#x", a.Value)
	}
	return fmt.Sprint(a.Value)
}
