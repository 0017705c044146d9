package subnet

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/jsonobject"
	"github.com/twill-net/twill/netstate"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with the file testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs\n got:\n%s\nwant:\n%s", path, got, want)
	}
}

// show is everything that a Config says, one thing a line.
func show(c Config) string {
	var b strings.Builder
	for _, p := range c.Pools {
		fmt.Fprintf(&b, "pool %s /%d from %s to %s count %d\n", p.Network, p.SubnetLen, p.Min, p.Max, p.Count())
	}
	if c.NFTables != nil {
		fmt.Fprintf(&b, "nftables %t\n", *c.NFTables)
	}
	fmt.Fprintf(&b, "backend %s %s\n", c.Backend, jsonobject.Brief(c.Options))
	for _, w := range c.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}

func TestParseConfigGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/config/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no configs: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c, err := ParseConfig(data)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("config", name+".golden"), show(c))
		})
	}
}

func TestParseConfigDefaults(t *testing.T) {
	for _, tc := range []struct{ config, want string }{
		{`{"Network":"10.0.0.0/22"}`, "pool 10.0.0.0/22 /24 from 10.0.0.0 to 10.0.3.0 count 4"},
		{`{"Network":"10.0.0.0/23"}`, "pool 10.0.0.0/23 /25 from 10.0.0.0 to 10.0.1.128 count 4"},
		{`{"Network":"10.0.0.0/28"}`, "pool 10.0.0.0/28 /30 from 10.0.0.0 to 10.0.0.12 count 4"},
		{`{"Network":"10.0.0.0/16","SubnetLen":0}`, "pool 10.0.0.0/16 /24 from 10.0.0.0 to 10.0.255.0 count 256"},
		{`{"Network":"10.0.0.0/16","SubnetLen":null}`, "pool 10.0.0.0/16 /24 from 10.0.0.0 to 10.0.255.0 count 256"},
		{`{"Network":"10.0.0.0/16","SubnetMin":"0.0.0.0"}`, "pool 10.0.0.0/16 /24 from 10.0.0.0 to 10.0.255.0 count 256"},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/62"}`, "pool fd00::/62 /64 from fd00:: to fd00:0:0:3:: count 4"},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/63"}`, "pool fd00::/63 /65 from fd00:: to fd00:0:0:1:8000:: count 4"},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/124"}`, "pool fd00::/124 /126 from fd00:: to fd00::c count 4"},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/8","IPv6SubnetLen":120}`,
			"pool fd00::/8 /120 from fd00:: to fdff:ffff:ffff:ffff:ffff:ffff:ffff:ff00 count 18446744073709551615"},
	} {
		c, err := ParseConfig([]byte(tc.config))
		if err != nil {
			t.Errorf("%s: %v", tc.config, err)
			continue
		}
		if got, _, _ := strings.Cut(show(c), "\n"); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.config, got, tc.want)
		}
	}
}

func TestParseConfigErrors(t *testing.T) {
	for _, tc := range []struct{ config, want string }{
		{``, `malformed JSON at line 1, column 1: unexpected end of JSON input`},
		{`x`, `malformed JSON at line 1, column 1: invalid character 'x' looking for beginning of value`},
		{"{\n  \"Network\": \"10.0.0.0/16\",\n}", `malformed JSON at line 3, column 1: invalid character '}' looking for beginning of object key string`},
		{`{"Network": "10.0.0.0/16"} x`, `malformed JSON at line 1, column 28: invalid character 'x' after top-level value`},
		{`[]`, `the text starts with []: want a JSON object in braces`},
		{`{}`, `Network is missing: want a network such as "10.244.0.0/16", or EnableIPv4 false`},
		{`{"Network":""}`, `Network "" is not an IPv4 network: want one such as "10.244.0.0/16"`},
		{`{"Network":7}`, `Network 7: want a string such as "10.244.0.0/16"`},
		{`{"Network":"10.0.0.0"}`, `Network "10.0.0.0" is not an IPv4 network: want one such as "10.244.0.0/16"`},
		{`{"Network":"fd00::/48"}`, `Network "fd00::/48" is not an IPv4 network: want one such as "10.244.0.0/16"`},
		{`{"Network":"0.0.0.0/0"}`, `Network "0.0.0.0/0" holds every address: want a network such as "10.244.0.0/16"`},
		{`{"Network":"224.0.0.0/8"}`, `Network 224.0.0.0/8: want a network such as "10.244.0.0/16": multicast addresses are no host's`},
		{`{"Network":"239.1.0.0/16"}`, `Network 239.1.0.0/16: want a network such as "10.244.0.0/16": multicast addresses are no host's`},
		{`{"Network":"127.0.0.0/8"}`, `Network 127.0.0.0/8: want a network such as "10.244.0.0/16": addresses of the loopback leave no host`},
		{`{"Network":"0.1.0.0/16"}`, `Network 0.1.0.0/16: want a network such as "10.244.0.0/16": addresses that begin with 0 are no host's`},
		{`{"Network":"169.254.0.0/16"}`, `Network 169.254.0.0/16: want a network such as "10.244.0.0/16": link-local addresses are not routed`},
		{`{"Network":"168.0.0.0/6"}`, `Network 168.0.0.0/6: want a network such as "10.244.0.0/16": link-local addresses are not routed`},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"ff05::/48"}`, `IPv6Network ff05::/48: want a network such as "fd00:10:244::/48": multicast addresses are no host's`},
		{`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fe80::/64"}`, `IPv6Network fe80::/64: want a network such as "fd00:10:244::/48": link-local addresses are not routed`},
		{`{"Network":"10.0.0.0/29"}`, `Network 10.0.0.0/29 is too small: want a /28 or larger`},
		{`{"Network":"10.0.0.0/16","SubnetLen":17}`, `SubnetLen 17 does not fit Network 10.0.0.0/16: want a number from 18 to 30`},
		{`{"Network":"10.0.0.0/16","SubnetLen":31}`, `SubnetLen 31 does not fit Network 10.0.0.0/16: want a number from 18 to 30`},
		{`{"Network":"10.0.0.0/16","SubnetLen":-1}`, `SubnetLen -1 does not fit Network 10.0.0.0/16: want a number from 18 to 30`},
		{`{"Network":"10.0.0.0/16","SubnetLen":"24"}`, `SubnetLen "24": want a number from 18 to 30`},
		{`{"Network":"10.0.0.0/16","SubnetMin":"10.1.0.0"}`, `SubnetMin "10.1.0.0" is not in the network: want an address in 10.0.0.0/16 such as "10.0.0.0"`},
		{`{"Network":"10.0.0.0/16","SubnetMax":"fd00::"}`, `SubnetMax "fd00::" is not in the network: want an address in 10.0.0.0/16 such as "10.0.255.0"`},
		{`{"Network":"10.0.0.0/16","SubnetMin":7}`, `SubnetMin 7: want an address in 10.0.0.0/16 such as "10.0.0.0"`},
		{`{"Network":"10.0.0.0/16","SubnetMin":"::"}`, `SubnetMin "::" is not in the network: want an address in 10.0.0.0/16 such as "10.0.0.0"`},
		{`{"Network":"10.0.0.0/16","SubnetMin":"10.0.3.7"}`, `SubnetMin 10.0.3.7 is not the start of a /24: want 10.0.3.0`},
		{`{"Network":"10.0.0.0/16","SubnetMin":"10.0.9.0","SubnetMax":"10.0.3.0"}`, `SubnetMax 10.0.3.0 is before SubnetMin 10.0.9.0: exchange them`},
		{`{"EnableIPv4":false}`, `EnableIPv4 and EnableIPv6 are both false: at least one must be true`},
		{`{"EnableIPv4":"no"}`, `EnableIPv4 "no": want true or false`},
		{`{"Network":"10.0.0.0/16","EnableIPv6":true}`, `IPv6Network is missing: want a network such as "fd00:10:244::/48", or EnableIPv6 false`},
		{`{"Network":"10.0.0.0/16","EnableIPv6":true,"IPv6Network":"10.1.0.0/16"}`, `IPv6Network "10.1.0.0/16" is not an IPv6 network: want one such as "fd00:10:244::/48"`},
		{`{"Network":"10.0.0.0/16","EnableIPv6":true,"IPv6Network":"::ffff:10.1.0.0/112"}`, `IPv6Network "::ffff:10.1.0.0/112" is not an IPv6 network: want one such as "fd00:10:244::/48"`},
		{`{"Network":"10.0.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/125"}`, `IPv6Network fd00::/125 is too small: want a /124 or larger`},
		{`{"Network":"10.0.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48","IPv6SubnetLen":127}`, `IPv6SubnetLen 127 does not fit IPv6Network fd00::/48: want a number from 50 to 126`},
		{`{"Network":"10.0.0.0/16","EnableNFTables":1}`, `EnableNFTables 1: want true or false`},
		{`{"Network":"10.0.0.0/16","Store":"lease"}`, `Store "lease": want "nodes", "both" or "leases"`},
		{`{"Network":"10.0.0.0/16","Store":true}`, `Store true: want "nodes", "both" or "leases"`},
		{`{"Network":"10.0.0.0/16","Backend":"vxlan"}`, `key Backend is "vxlan": want an object such as {"Type": "vxlan"}`},
		{`{"Network":"10.0.0.0/16","Backend":{"Type":3}}`, `key Backend: Type 3: want a string such as "vxlan"`},
		{`{"Network":"10.0.0.0/16","Backend":{"Type":""}}`, `key Backend has an empty Type: want a backend's name such as "vxlan"`},
	} {
		if _, err := ParseConfig([]byte(tc.config)); err == nil || err.Error() != tc.want {
			t.Errorf("%s:\n got %v\nwant %s", tc.config, err, tc.want)
		}
	}
}

// TestStoreKey: where leases are is said, or it is not.
func TestStoreKey(t *testing.T) {
	for key, want := range map[string]string{"": "", `"Store":null,`: "", `"store":"nodes",`: StoreNodes, `"Store":"both",`: StoreBoth,
		`"STORE":"leases",`: StoreLeases} {
		c, err := ParseConfig([]byte(`{` + key + `"Network":"10.0.0.0/16","Backend":{"Type":"vxlan"}}`))
		if err != nil || c.Store != want || len(c.Warnings) > 0 {
			t.Errorf("%s: got %q, %q, %v; want %q", key, c.Store, c.Warnings, err, want)
		}
	}
}

// TestReservedByNobody: 240.0.0.0/4 is reserved, and some use it.
func TestReservedByNobody(t *testing.T) {
	if _, err := ParseConfig([]byte(`{"Network":"240.1.0.0/16","Backend":{"Type":"vxlan"}}`)); err != nil {
		t.Error(err)
	}
}

// TestHints: an unknown key comes with the known one that it is like.
func TestHints(t *testing.T) {
	for key, want := range map[string]string{
		"SubnetLength": `key "SubnetLength" is unknown and has no effect: did you mean SubnetLen?`,
		"Bakcend":      `key "Bakcend" is unknown and has no effect: did you mean Backend?`,
		"IPv6Netwrok":  `key "IPv6Netwrok" is unknown and has no effect: did you mean IPv6Network?`,
		"Vlan":         `key "Vlan" is unknown and has no effect`,
	} {
		c, err := ParseConfig([]byte(`{"Network":"10.0.0.0/16","Backend":{"Type":"vxlan"},"` + key + `":{}}`))
		if err != nil || len(c.Warnings) != 1 || c.Warnings[0] != want {
			t.Errorf("%s: got %q, %v; want %q", key, c.Warnings, err, want)
		}
	}
}

// TestPrivateNetworks: a network is warned of unless all of it is in one private range.
func TestPrivateNetworks(t *testing.T) {
	for network, private := range map[string]bool{
		"10.0.0.0/8": true, "10.244.0.0/16": true, "172.16.0.0/12": true, "172.31.0.0/16": true, "192.168.0.0/16": true, "100.64.0.0/10": true,
		"fc00::/7": true, "fd00::/48": true,
		"10.0.0.0/7": false, "11.0.0.0/16": false, "172.32.0.0/16": false, "100.128.0.0/16": false, "2001:db8::/32": false,
	} {
		if got := isPrivate(netip.MustParsePrefix(network)); got != private {
			t.Errorf("%s is private: %t, want %t", network, got, private)
		}
	}
}

// TestBrief: forty bytes are shown, a rune whole or not at all.
func TestBrief(t *testing.T) {
	forty := strings.Repeat("x", 40)
	for data, want := range map[string]string{"{ }": "{}", forty: forty, forty + "y": forty + "…", forty[1:] + "é": forty[1:] + "…"} {
		if got := jsonobject.Brief([]byte(data)); got != want {
			t.Errorf("%q is shown as %q, want %q", data, got, want)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	files, _ := filepath.Glob("testdata/config/*.json")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"Network":"0.0.0.0/1","SubnetLen":30,"SubnetMin":"127.255.255.252"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		if len(c.Pools) == 0 || c.Backend == "" || !json.Valid(c.Options) {
			t.Fatalf("incomplete config: %+v", c)
		}
		for _, p := range c.Pools {
			first, last := p.Subnet(0), p.Subnet(p.Count()-1)
			if !p.Contains(first) || !p.Contains(last) || first.Addr() != p.Min {
				t.Errorf("pool %+v does not contain its first %s or last %s", p, first, last)
			}
			if s, ok := p.Free(p.Count()-1, nil); !ok || s != last {
				t.Errorf("pool %+v: free is %s, want %s", p, s, last)
			}
		}
		if len(c.Pools) == 2 && c.Pools[0].Family() != netstate.IPv4 {
			t.Errorf("pools are not IPv4 first: %+v", c.Pools)
		}
	})
}
