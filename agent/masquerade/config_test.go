package masquerade

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

const rfc1918 = " 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16"

// TestParse follows ip-masq-agent's own tests, and goes on with what it leaves out.
func TestParse(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"YAML, all keys": {"\nnonMasqueradeCIDRs:\n  - 172.16.0.0/12\n  - 10.0.0.0/8\ncidrLimit: 64\nmasqLinkLocal: true\nresyncInterval: 5s\n",
			"[fe80::/10 172.16.0.0/12 10.0.0.0/8] 5s []"},
		"YAML, networks":   {"nonMasqueradeCIDRs:\n  - 192.168.0.0/16\n", "[169.254.0.0/16 fe80::/10 192.168.0.0/16] 1m0s []"},
		"YAML, link-local": {"masqLinkLocal: true\n", "[fe80::/10" + rfc1918 + "] 1m0s []"},
		"YAML, interval":   {"resyncInterval: 5m\n", "[169.254.0.0/16 fe80::/10" + rfc1918 + "] 5m0s []"},
		"JSON, all keys": {`{"nonMasqueradeCIDRs": ["172.16.0.0/12", "fc00::/7"], "masqLinkLocal": true, "masqLinkLocalIPv6": true, "resyncInterval": "5s"}`,
			"[172.16.0.0/12 fc00::/7] 5s []"},
		"other case":      {`{"nonmasqueradecidrs": [], "MasqLinkLocal": true, "masqLinkLocalIPv6": true}`, "[] 1m0s []"},
		"empty":           {"", "[169.254.0.0/16 fe80::/10" + rfc1918 + "] 1m0s []"},
		"a comment":       {"# nothing\n", "[169.254.0.0/16 fe80::/10" + rfc1918 + "] 1m0s []"},
		"null":            {"nonMasqueradeCIDRs:\n", "[169.254.0.0/16 fe80::/10" + rfc1918 + "] 1m0s []"},
		"unknown key":     {"masqLinkLocale: true", "[169.254.0.0/16 fe80::/10" + rfc1918 + `] 1m0s [key "masqLinkLocale" is unknown and has no effect: did you mean masqLinkLocal?]`},
		"not YAML":        {"*", "want YAML or JSON: "},
		"not JSON":        {"{*", "want YAML or JSON: "},
		"a list":          {"- 10.0.0.0/8", "want keys such as nonMasqueradeCIDRs: "},
		"no network":      {"nonMasqueradeCIDRs: [10.0.0.0/8, abcdefg]", `nonMasqueradeCIDRs: "abcdefg" is not a network: want one such as`},
		"no address":      {"nonMasqueradeCIDRs: [10.256.0.0/16]", `nonMasqueradeCIDRs: "10.256.0.0/16" is not a network`},
		"not aligned":     {"nonMasqueradeCIDRs: [10.0.0.1/8]", "nonMasqueradeCIDRs: 10.0.0.1/8 has host bits set: want 10.0.0.0/8"},
		"no list":         {"nonMasqueradeCIDRs: 10.0.0.0/8", `nonMasqueradeCIDRs "10.0.0.0/8": want a list of networks such as 10.0.0.0/8`},
		"interval number": {"resyncInterval: 5", `resyncInterval 5: want a time such as "60s"`},
		"short interval":  {"resyncInterval: 1ms", `resyncInterval "1ms": want a time of at least 1s, such as "60s"`},
		"too many": {"cidrLimit: 1\nnonMasqueradeCIDRs: [10.0.0.0/8, fc00::/7]",
			"nonMasqueradeCIDRs has 2 networks: want at most 1 (cidrLimit)"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := Parse([]byte(c.text))
			got := fmt.Sprint(config.Exempt, config.Resync, config.Warnings)
			if err != nil {
				got = err.Error()
				if strings.ContainsAny(got, "\n") {
					t.Errorf("more than a line: %q", got)
				}
			}
			if !strings.HasPrefix(got, c.want) || err == nil && got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestReadMissing(t *testing.T) {
	c, err := Read(filepath.Join(t.TempDir(), "ip-masq-agent"))
	if got := fmt.Sprint(c.Exempt, err); got != "[169.254.0.0/16 fe80::/10"+rfc1918+"] <nil>" {
		t.Errorf("got %s", got)
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("a directory is no error")
	}
}
