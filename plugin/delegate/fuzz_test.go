package delegate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/plugin/ipam"
)

// FuzzRecord reads records that a power loss or somebody else wrote.
func FuzzRecord(f *testing.F) {
	good, err := json.Marshal(record{ipam.Owner{Container: "a", Dev: "eth0"},
		[]Plugin{{"portmap", map[string]json.RawMessage{"name": []byte(`"cbr0"`)}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"Container":"a","Dev":"eth0","Netns":"/run/netns/a","Addons":[{"Type":"../../bin/sh"},{}]}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		store := ipam.Store(t.TempDir())
		path := store.Record(ipam.Owner{Container: "a", Dev: "eth0"})
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		plugins, err := readRecord(path)
		if err != nil {
			t.Fatalf("a record that cannot be read: %v, want none", err)
		}
		for _, p := range plugins {
			if p.Type != "portmap" && p.Type != "bandwidth" {
				t.Errorf("the record has %q started", p.Type)
			}
		}
		if all, err := store.Allocations(); err != nil || len(all) > 1 {
			t.Errorf("allocations %v, %v; want at most the record's", all, err)
		}
	})
}

func TestNftTarget(t *testing.T) {
	for rule, want := range map[string]string{
		"ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.244.1.2:80 comment \"a\" # handle 12":         "10.244.1.2",
		"ip6 daddr 2001:db8::1 tcp dport 8080 dnat to [fd00::2]:80 # handle 13":                     "fd00::2",
		"ip saddr 10.244.1.2 ip daddr 10.244.1.2 tcp dport 80 masquerade comment \"a\" # handle 14": "10.244.1.2",
		"ip daddr 10.244.1.2 accept # handle 15":                                                    "invalid IP",
	} {
		if got := nftTarget(strings.Fields(rule)); got.String() != want {
			t.Errorf("%s leads to %s, want %s", rule, got, want)
		}
	}
}

// FuzzSavedPorts reads the output of a program that shows what others wrote.
func FuzzSavedPorts(f *testing.F) {
	f.Add("# Generated\n*nat\n:CNI-DN-1 - [0:0]\n-A CNI-HOSTPORT-DNAT -m comment --comment \"a b\" -j CNI-DN-1\n-A CNI-DN-1 -p tcp -j DNAT --to-destination 10.244.1.2:80\nCOMMIT\n")
	f.Add(":CNI-DN-1 - [0:0]\n-A CNI-DN-1 -j DNAT --to-destination [fd00::2]:80")
	f.Add(":\n:CNI-HOSTPORT-DNAT -\n:CNI-DN-1 -\nnone\n-A\vCNI-HOSTPORT-DNAT -m multiport -j CNI-DN-1\n-A CNI-DN-1 -j DNAT --to-destination 10.244.1.2:80")
	f.Fuzz(func(t *testing.T, saved string) {
		for a, lines := range savedPorts(saved) {
			if !a.IsValid() || len(lines) < 2 {
				t.Errorf("%s is removed by %q", a, lines)
			}
			for _, l := range lines {
				if strings.ContainsAny(l, "\n") || !strings.HasPrefix(l, "-D CNI-HOSTPORT-DNAT") &&
					!strings.HasPrefix(l, "-F CNI-DN-") && !strings.HasPrefix(l, "-X CNI-DN-") {
					t.Errorf("%q touches something else than portmap's rules", l)
				}
			}
		}
		_ = nftTarget(append(strings.Fields(saved), "end"))
	})
}
