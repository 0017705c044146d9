package agent

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClip(t *testing.T) {
	if got := clip("short"); got != "short" {
		t.Errorf("short: %q", got)
	}
	got := clip(strings.Repeat("é", 1<<20))
	if len(got) > maxReason+30 || !utf8.ValidString(got) || !strings.HasSuffix(got, " … (2097152 bytes)") {
		t.Errorf("a megabyte: %d bytes, %q", len(got), got[len(got)-30:])
	}
}
