package subnet

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestConfigPage: the page about net-conf.json lists the keys that there are, and no others.
func TestConfigPage(t *testing.T) {
	page, err := os.ReadFile("../Documentation/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## net-conf.json")
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-Za-z0-9, ]+) \|`).FindAllStringSubmatch(section, -1)[1:] {
		for key := range strings.SplitSeq(row[1], ", ") {
			listed = append(listed, key)
		}
	}
	slices.Sort(listed)
	if want := slices.Sorted(slices.Values(knownKeys)); !slices.Equal(listed, want) {
		t.Errorf("configuration.md lists %v, want %v", listed, want)
	}
}
