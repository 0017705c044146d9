package savedrule

import (
	"slices"
	"strings"
	"testing"
)

func TestWords(t *testing.T) {
	for line, want := range map[string][]string{
		`-A FORWARD  -j DROP`:                      {"-A", "FORWARD", "-j", "DROP"},
		`-m comment --comment "two words" -j DROP`: {"-m", "comment", "--comment", "two words", "-j", "DROP"},
		`--comment "a \"quoted word" -j DROP`:      {"--comment", `a "quoted word`, "-j", "DROP"},
		`--comment "it\'s \\" -j DROP`:             {"--comment", `it's \`, "-j", "DROP"},
		`--comment "" -j DROP`:                     {"--comment", "", "-j", "DROP"},
		`--comment back\slash`:                     {"--comment", `back\slash`},
		``:                                         nil,
	} {
		if got := Words(line); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

// FuzzWords: whatever is quoted is one word, and is read back.
func FuzzWords(f *testing.F) {
	f.Add(`a "b" 'c' \ d`, "x")
	f.Fuzz(func(t *testing.T, first, second string) {
		quote := func(s string) string {
			return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `'`, `\'`).Replace(s) + `"`
		}
		first, second = strings.ToValidUTF8(first, ""), strings.ToValidUTF8(second, "")
		if got := Words(quote(first) + " " + quote(second)); !slices.Equal(got, []string{first, second}) {
			t.Errorf("got %q, want %q and %q", got, first, second)
		}
	})
}
