package plain_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/twill-net/twill/internal/plain"
)

func TestWriter(t *testing.T) {
	for in, want := range map[string]string{
		"node1 → node2\t✓\n":            "node1 → node2\t✓\n",
		"\x1b[2J\x1b]0;pwned\a":         `\u001b[2J\u001b]0;pwned\u0007`,
		"fix\rsafe\b\x7f":               `fix\u000dsafe\u0008\u007f`,
		"c1 \u009b31m":                  `c1 \u009b31m`,
		"c1 as a byte \x9b31m":          "c1 as a byte \ufffd31m",
		"a\u202eb\u2066c\u200bd":        `a\u202eb\u2066c\u200bd`,
		"tags \U000e0041":               `tags \udb40\udc41`,
		"line\u2028and paragraph\u2029": `line\u2028and paragraph\u2029`,
	} {
		for size := 1; size <= len(in); size++ {
			var out bytes.Buffer
			w := plain.NewWriter(&out)
			for rest := []byte(in); len(rest) > 0; {
				n := min(size, len(rest))
				if wrote, err := w.Write(rest[:n]); wrote != n || err != nil {
					t.Fatalf("%q: wrote %d, %v", rest[:n], wrote, err)
				}
				rest = rest[n:]
			}
			if out.String() != want {
				t.Errorf("%q, %d bytes at a time: got %q, want %q", in, size, &out, want)
			}
		}
	}
	if plain.Raw(plain.NewWriter(os.Stdout)) != os.Stdout || plain.Raw(os.Stderr) != os.Stderr {
		t.Error("Raw is another writer")
	}
}

// FuzzText: whatever comes, only graphic characters, newlines and tabs leave, JSON stays JSON with the same meaning.
func FuzzText(f *testing.F) {
	f.Add([]byte("\x1b[2J\u202e\xff\"\\"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got := plain.Text(text)
		for _, r := range string(got) {
			if !unicode.IsGraphic(r) && r != '\n' && r != '\t' {
				t.Fatalf("%q has %U", got, r)
			}
		}
		if !utf8.Valid(text) {
			return
		}
		encoded, err := json.Marshal(string(text))
		if err != nil {
			t.Fatal(err)
		}
		var back string
		if err := json.Unmarshal(plain.Text(encoded), &back); err != nil || back != string(text) {
			t.Fatalf("%q became %q: %v", text, back, err)
		}
	})
}
