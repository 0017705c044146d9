package plugin

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestConfigPage: each key of a network config that the page about the CNI plugin lists is one.
func TestConfigPage(t *testing.T) {
	page, err := os.ReadFile("../Documentation/cni.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n| key | default | meaning |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	config := map[string]any{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-Za-z0-9., …]+) \|`).FindAllStringSubmatch(table, -1) {
		for key := range strings.SplitSeq(strings.TrimSuffix(row[1], " …"), ", ") {
			parent, child, nested := strings.Cut(key, ".")
			if !nested {
				config[key] = nil
				continue
			}
			if config[parent] == nil {
				config[parent] = map[string]any{}
			}
			config[parent].(map[string]any)[child] = nil
		}
	}
	if len(config) < 10 {
		t.Fatalf("%d keys found, there are more: this test does not see them", len(config))
	}
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig(data)
	if err != nil || len(c.warnings) > 0 {
		t.Errorf("%v\n%s", err, strings.Join(c.warnings, "\n"))
	}
}
