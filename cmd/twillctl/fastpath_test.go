package main

import (
	"strings"
	"testing"
)

func TestFastPathBadInput(t *testing.T) {
	for args, want := range map[string]string{
		"pause 10":                            `pause "10": want a time of up to 24h0m0s, as 10m`,
		"pause -1m":                           "unknown shorthand flag",
		"pause 25h":                           `pause "25h": want a time of up to 24h0m0s, as 10m`,
		"pause 1m node1":                      `node "node1": only a node of a lab can be named, with --lab`,
		"status --bpffs " + t.TempDir():       "",
		"resume --bpffs " + t.TempDir():       "the fast path is not available",
		"status --output yaml --bpffs " + "/": `--output "yaml": want text or json`,
	} {
		c := fastPathCommand()
		c.SetArgs(strings.Fields(args))
		c.SilenceErrors, c.SilenceUsage = true, true
		var out strings.Builder
		c.SetOut(&out)
		err := c.ExecuteContext(t.Context())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
		if err == nil && !strings.HasPrefix(out.String(), "fast path: off: ") {
			t.Errorf("%s printed %q", args, out.String())
		}
	}
}
