package plugin

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/plugin/ipam"
)

func TestParseConfig(t *testing.T) {
	c, err := parseConfig([]byte(`{"cniVersion":"1.0.0","name":"cbr0","type":"flannel","subnetFile":"/s","dataDir":"/d",
		"DELEGATE":{"hairpinMode":false,"isDefaultGateway":false,"MTU":1300,"bridge":"br7","type":"bridge"},
		"ipam":{"type":"host-local","routes":[{"dst":"192.0.2.0/24"},{"dst":"2001:db8::/32","gw":"fd00::9"}]},
		"runtimeConfig":{"portMappings":null,"PortMappings":[]},"capabilities":{"portMappings":true},"args":{"cni":{}},"dns":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.warnings) > 0 {
		t.Errorf("warnings %q, want none", c.warnings)
	}
	if c.port.Hairpin || c.defaultGateway || c.mtu != 1300 || c.bridge != "br7" || c.subnetFile != "/s" ||
		c.flannelDir != "/d" ||
		string(c.store()) != "/var/lib/cni/networks/cbr0" || len(c.routes) != 2 || c.routes[0].Via.IsValid() ||
		!c.routes[1].Via.IsValid() {
		t.Errorf("config %+v", c)
	}
}

// TestOlderForms reads one range in host-local's older form, and the resolver from a file.
func TestOlderForms(t *testing.T) {
	resolver := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolver,
		[]byte("# a comment\nnameserver 192.0.2.3\nsearch a b\ndomain c\noptions ndots:5\nnonsense\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig([]byte(`{"ipam":{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.9","gateway":"10.1.2.3",
		"ranges":[[{"subnet":"fd00::/64"}]],"resolvConf":"` + resolver + `"}}`))
	if err != nil || len(c.warnings) > 0 {
		t.Fatal(err, c.warnings)
	}
	if got := ipam.SetsString(c.ranges); got != "10.1.2.0/24 (10.1.2.9 to 10.1.2.254), fd00::/64 (fd00::1 to fd00::ffff:ffff:ffff:ffff)" {
		t.Errorf("ranges %s", got)
	}
	if c.ranges[0][0].Gateway != netip.MustParseAddr("10.1.2.3") {
		t.Errorf("gateway %s", c.ranges[0][0].Gateway)
	}
	want := types.DNS{Nameservers: []string{"192.0.2.3"}, Domain: "c", Search: []string{"a", "b"},
		Options: []string{"ndots:5"}}
	if !reflect.DeepEqual(c.dns, want) {
		t.Errorf("dns %+v, want %+v", c.dns, want)
	}
	if _, err := parseConfig([]byte(`{"ipam":{"resolvConf":"/nonexistent"}}`)); err == nil ||
		!strings.Contains(err.Error(), "want a file that can be read") {
		t.Errorf("a resolver file that is not there: %v", err)
	}
}

func TestDefaults(t *testing.T) {
	c, err := parseConfig([]byte(`{"name":"n","mtu":null,"delegate":null,"ipam":null,"prevResult":null}`))
	if err != nil || !c.port.Hairpin || !c.defaultGateway || c.bridge != "cni0" ||
		c.subnetFile != "/run/flannel/subnet.env" ||
		string(c.store()) != "/var/lib/cni/networks/n" || c.mtu != 0 || c.prevResult != nil || c.attachments != nil {
		t.Errorf("config %+v, %v", c, err)
	}
}

func TestDataDir(t *testing.T) {
	for conf, want := range map[string]string{`{"name":"n","dataDir":"/d"}`: "/d/n",
		`{"name":"n","type":"flannel","dataDir":"/d"}`: "/var/lib/cni/networks/n"} {
		if c, err := parseConfig([]byte(conf)); err != nil || string(c.store()) != want {
			t.Errorf("%s: reservations in %s, %v; want %s", conf, c.store(), err, want)
		}
	}
	if _, err := parseConfig([]byte("{")); err == nil || !strings.Contains(err.Error(),
		"network config: malformed JSON at line 1, column 2: unexpected end") {
		t.Errorf("half an object: %v", err)
	}
}

// TestBadValues holds that an error names the key, its value and what would be right.
func TestBadValues(t *testing.T) {
	for conf, want := range map[string]string{
		`{"mtu":"9000x"}`:                          `mtu is "9000x": want a number of bytes from 68 to 65535`,
		`{"delegate":{"mtu":5}}`:                   `delegate.mtu is 5: want a number of bytes from 68 to 65535`,
		`{"hairpinMode":"yes"}`:                    `hairpinMode is "yes": want true or false`,
		`{"bridge":"a/b"}`:                         `bridge is a/b: want an interface name`,
		`{"bridge":"0123456789abcdef"}`:            `want an interface name of 1 to 15 characters`,
		`{"delegate":7}`:                           `delegate is 7: want an object`,
		`{"delegate":{"type":"ipvlan"}}`:           `delegate.type is ipvlan: want bridge or nothing`,
		`{"ipam":7}`:                               `ipam is 7: want an object`,
		`{"ipam":{"type":"dhcp"}}`:                 `ipam.type is dhcp: want host-local or nothing`,
		`{"ipam":{"ranges":7}}`:                    `ipam.ranges is 7: want a list of lists`,
		`{"ipam":{"routes":[{"dst":"10.0.0.0"}]}}`: `ipam.routes[0].dst is "10.0.0.0": want a network such as`,
		`{"ipam":{"routes":[{"dst":"10.0.0.0/8","gw":"fd00::1"}]}}`:                                             `ipam.routes[0].gw is fd00::1: want an address of the same family as dst`,
		`{"ipam":{"routes":[{"gw":"10.0.0.1"}]}}`:                                                               `ipam.routes[0].dst is missing: want a network`,
		`{"ipam":{"routes":[7]}}`:                                                                               `ipam.routes[0] is 7: want an object`,
		`{"ipam":{"ranges":[{"subnet":"10.0.0.0/24"}]}}`:                                                        `ipam.ranges[0] is {"subnet":"10.0.0.0/24"}: want one of a list of lists`,
		`{"ipam":{"ranges":[[{"subnet":"010.0.0.0/24"}]]}}`:                                                     `ipam.ranges[0][0].subnet is "010.0.0.0/24": want a network`,
		`{"ipam":{"ranges":[[{"subnet":"10.24.2.0/24","rangeStart":"10.24.2.255","rangeEnd":"10.24.2.255"}]]}}`: `ipam.ranges[0][0]: range 10.24.2.255 to 10.24.2.255: 10.24.2.255 is the broadcast address of 10.24.2.0/24`,
		`{"ipam":{"ranges":[[{"subnet":"10.24.7.0/24"}],[{"subnet":"10.24.7.0/24"}]]}}`:                         `overlap: want each address in one range`,
		`{"ipam":{"ranges":[[{"subnet":"10.24.7.0/24"},{"subnet":"10.24.0.0/16"}]]}}`:                           `overlap: want each address in one range`,
		`{"ipam":{"ranges":[[{"subnet":"10.24.6.0/24"},{"subnet":"fd00:6::/64"}]]}}`:                            `want one family in a set`,
		`{"ipam":{"ranges":[[{"subnet":"10.0.0.0/31"}]]}}`:                                                      `subnet 10.0.0.0/31: want a prefix with room`,
		`{"ipam":{"ranges":[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.1.1"}]]}}`:                              `range 10.0.1.1 to 10.0.0.254: want addresses of 10.0.0.0/24`,
		`{"ipam":{"ranges":[[{"subnet":"10.0.0.0/24","gateway":"fd00::1"}]]}}`:                                  `gateway fd00::1 of 10.0.0.0/24: want an address of the same family`,
		`{"ipam":{"ranges":[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.9","rangeEnd":"10.0.0.8"}]]}}`:        `the lower one first`,
	} {
		_, err := parseConfig([]byte(conf))
		var e *types.Error
		if !errors.As(err, &e) || e.Code != types.ErrInvalidNetworkConfig || !strings.Contains(e.Msg, want) {
			t.Errorf("%s: %v, want code 7: %s", conf, err, want)
		}
	}
}

// TestWarnings holds that an unknown key is named on standard error, once a pod, and that the pod gets its
// network.
func TestWarnings(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	conf := n.config(map[string]any{"hairpinmod": true, "delegate": map[string]any{"vlan": 7, "ipMasq": true}})
	r := n.call("ADD", "a", pod, conf)
	want := "twill: network cbr0: delegate.ipMasq is ignored: the agent masquerades for all pods (twilld --ip-masq)\n" +
		"twill: network cbr0: delegate.vlan is not a setting of twill and has no effect\n" +
		"twill: network cbr0: hairpinmod is not a setting of twill and has no effect: did you mean hairpinMode?\n"
	if r.failed != nil || string(r.stderr) != want {
		t.Errorf("%v, standard error:\n%s\nwant\n%s", r.failed, r.stderr, want)
	}
	n.must("DEL", "a", pod, conf)
}

// TestNoEffect: each key that has no effect is said, inside of ranges and routes, too, with the one that may be meant, and so is
// an address of a range that no pod can have.
func TestNoEffect(t *testing.T) {
	for conf, want := range map[string][]string{
		`{"bridge":"cni0","hairpinmod":true}`:                                          {"hairpinmod is not a setting of twill and has no effect: did you mean hairpinMode?"},
		`{"ipam":{"ranges":[[{"subnet":"10.24.5.0/24","exclude":["10.24.5.0/28"]}]]}}`: {"ipam.ranges[0][0].exclude is not a setting of twill and has no effect"},
		`{"ipam":{"ranges":[[{"subnet":"10.24.5.0/24"},{"subnet":"10.24.6.0/24","rangestrat":"10.24.6.9"}]]}}`: {
			"ipam.ranges[0][1].rangestrat is not a setting of twill and has no effect: did you mean rangeStart?"},
		`{"ipam":{"routes":[{"dst":"10.9.0.0/16","mtu":1300,"priority":77,"table":5}]}}`: {"ipam.routes[0].mtu is not a setting of twill and has no effect",
			"ipam.routes[0].priority is not a setting of twill and has no effect", "ipam.routes[0].table is not a setting of twill and has no effect"},
		`{"ipam":{"rangeStart":"10.244.1.100","rangeEnd":"10.244.1.110"}}`: {"ipam.rangeStart has no effect without ipam.subnet",
			"ipam.rangeEnd has no effect without ipam.subnet"},
		`{"ipam":{"ranges":[[{"subnet":"10.24.2.0/23","rangeStart":"10.24.2.0","rangeEnd":"10.24.3.255"}]]}}`: {
			"ipam.ranges[0][0].rangeStart 10.24.2.0 is no pod's: the range begins at 10.24.2.1",
			"ipam.ranges[0][0].rangeEnd 10.24.3.255 is no pod's: the range ends at 10.24.3.254"},
		`{"ipam":{"ranges":[[{"subnet":"10.24.2.0/24","rangeStart":"10.24.2.10","rangeEnd":"10.24.2.20"},{"subnet":"10.24.2.0/24","rangeStart":"10.24.2.30"}],[{"subnet":"fd00::/64"}]]}}`: nil,
	} {
		c, err := parseConfig([]byte(conf))
		if err != nil || !slices.Equal(c.warnings, want) {
			t.Errorf("%s:\n got %q, %v\nwant %q", conf, c.warnings, err, want)
		}
	}
}

func TestVersion(t *testing.T) {
	n := newNode(t, "")
	want := `{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}` + "\n"
	if got := n.must("VERSION", "", "", nil); string(got) != want {
		t.Errorf("VERSION: %s, want %s", got, want)
	}
}

// TestSize holds what a runtime pays for every pod: the binary's size and what is linked into it.
func TestSize(t *testing.T) {
	info, err := os.Stat(filepath.Join(binaries, "twill"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 4<<20 {
		t.Errorf("the plugin has %d bytes, want at most 4 MiB", info.Size())
	}
	out, err := exec.Command("go", "list", "-deps", "github.com/twill-net/twill/cmd/twill").Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.Lines(string(out)) {
		for _, bad := range []string{"k8s.io/", "go-iptables", "nftables", "knftables", "prometheus", "log/slog"} {
			if strings.Contains(pkg, bad) {
				t.Errorf("the plugin reaches %s", strings.TrimSpace(pkg))
			}
		}
	}
}

// FuzzParseConfig feeds foreign bytes: never a panic, and a config without an error has only values that the
// rest of the package relies on.
func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `[]`, `{"name":"cbr0","type":"flannel","delegate":{"hairpinMode":true}}`,
		`{"mtu":1450,"bridge":"cni0","ipam":{"ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"fd00::/64","rangeEnd":"fd00::9"}]]}}`,
		`{"ipam":{"routes":[{"dst":"0.0.0.0/0"},{"dst":"::ffff:1.2.3.4/128"}]},"prevResult":{"cniVersion":"1.0.0"}}`,
		`{"runtimeConfig":{"portMappings":[{"HostPort":80,"ContainerPort":8080}],"bandwidth":{"ingressRate":1,"ingressBurst":1},"ips":["10.0.0.1/8"],"mac":"02:00:00:00:00:01"}}`,
		`{"runtimeConfig":{"ipRanges":[[{"subnet":"10.0.0.0/8"}]],"dns":{"servers":["x"]}},"args":{"cni":{"ips":["::1"]}},"ipam":{"subnet":"10.0.0.0/8","rangeEnd":"10.0.0.9"},"portmap":{}}`,
		`{"ipam":{"ranges":[[{"subnet":"0.0.0.0/0"},{"subnet":"::/0"}]]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfig(data)
		if c == nil {
			t.Fatal("no config")
		}
		_ = c.addresses()
		if err != nil {
			return
		}
		if !validDev(c.bridge) || (c.mtu != 0 && (c.mtu < 68 || c.mtu > 65535)) {
			t.Errorf("bridge %q, mtu %d", c.bridge, c.mtu)
		}
		for _, set := range c.ranges {
			for _, r := range set {
				if !r.Subnet.Contains(r.First) || !r.Subnet.Contains(r.Last) || r.Last.Less(r.First) {
					t.Errorf("range %+v", r)
				}
			}
		}
	})
}
