package target

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func packed(t *testing.T, b Bundle) string {
	t.Helper()
	var out bytes.Buffer
	if err := b.WriteTar(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestHostileBundle: a node's archive has no names that lead elsewhere, and does not fill the memory.
func TestHostileBundle(t *testing.T) {
	many := make(Bundle, maxMembers+1)
	for i := range many {
		many[i].Name = fmt.Sprintf("m%d.txt", i)
	}
	for name, c := range map[string]struct {
		bundle, want string
	}{
		"up":     {packed(t, Bundle{{"../../../../etc/cron.txt", nil}}), `member "twill-report/../../../../etc/cron.txt"`},
		"hidden": {packed(t, Bundle{{".bashrc", nil}}), `member "twill-report/.bashrc"`},
		"escape": {packed(t, Bundle{{"a\x1b.txt", nil}}), `member "twill-report/a\x1b.txt"`},
		"many":   {packed(t, many), "want at most 100 files"},
		"large":  {packed(t, Bundle{{"a.txt", bytes.Repeat([]byte("a"), maxBytes)}}), "it is larger than 67108864 bytes"},
	} {
		files, err := ReadBundle(strings.NewReader(c.bundle))
		if err == nil || len(files) > 0 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d files, %v, want %q", name, len(files), err, c.want)
		}
	}
}
