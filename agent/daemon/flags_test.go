package daemon

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func noEnv(string) (string, bool) { return "", false }

func TestFlagsAndEnvironment(t *testing.T) {
	env := func(name string) (string, bool) {
		value, ok := map[string]string{
			"FLANNELD_IFACE": "eth1", "FLANNELD_IP_MASQ": "true", "TWILLD_IP_MASQ": "false",
			"FLANNELD_SUBNET_FILE": "/env", "FLANNELD_ETCD_PREFIX": "/env",
		}[name]
		return value, ok
	}
	o, err := parseFlags([]string{"-etcd-prefix=/flag", "--iptables-resync", "5", "--alsologtostderr"}, env, nil)
	if err != nil {
		t.Fatal(err)
	}
	if o.iface.String() != "eth1" || o.subnetFile != "/env" {
		t.Errorf("FLANNELD_ variables are not read: iface %q, subnet file %q", o.iface, o.subnetFile)
	}
	if o.ipMasq {
		t.Error("TWILLD_IP_MASQ does not beat FLANNELD_IP_MASQ")
	}
	if o.etcdPrefix != "/flag" {
		t.Errorf("a flag does not beat the environment: %q", o.etcdPrefix)
	}
	if strings.Join(o.ignored, " ") != "iptables-resync alsologtostderr" {
		t.Errorf("ignored %q", o.ignored)
	}
}

// TestListsAreFlannels: a value may contain a comma, the environment gives one value, and an empty
// variable none.
func TestListsAreFlannels(t *testing.T) {
	for _, c := range []struct {
		name, args string
		env        map[string]string
		want       string
	}{
		{"kubespray", `--iface-regex=10\.0\.[0-2]\.\d{1,3}`, nil, `[] [10\.0\.[0-2]\.\d{1,3}] ""`},
		{"Vagrant", `--iface=enp0s8 --iface=eth1 --iface-regex=10\.64`, nil, `["enp0s8" "eth1"] [10\.64] ""`},
		{"a comma", "--iface=a,b -iface c", nil, `["a,b" "c"] [] ""`},
		{"empty", "--iface= --iface-can-reach=", nil, `[""] [] ""`},
		{"the last", "--iface-can-reach=10.0.0.1 --iface-can-reach=10.0.0.2", nil, `[] [] "10.0.0.2"`},
		{"environment", "", map[string]string{"FLANNELD_IFACE": "a,b", "FLANNELD_IFACE_REGEX": `\d{1,3}`, "FLANNELD_IFACE_CAN_REACH": "10.0.0.1"},
			`["a,b"] [\d{1,3}] "10.0.0.1"`},
		{"empty environment", "", map[string]string{"FLANNELD_IFACE": "", "TWILLD_IFACE_REGEX": "", "FLANNELD_IFACE_REGEX": "x", "FLANNELD_IP_MASQ": ""},
			`[] [x] ""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := parseFlags(strings.Fields(c.args), func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }, nil)
			if err != nil {
				t.Fatal(err)
			}
			choice, err := o.choice()
			if got := fmt.Sprintf("%q %v %q", choice.Names, choice.Patterns, o.ifaceCanReach); got != c.want || err != nil {
				t.Errorf("got %s, %v\nwant %s", got, err, c.want)
			}
		})
	}
}

func TestBadFlagsAreOneSentence(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--ifcae eth1", "flag provided but not defined: -ifcae: did you mean --iface? (twilld --help lists the flags)"},
		{"--ipmasq", "flag provided but not defined: -ipmasq: did you mean --ip-masq? (twilld --help lists the flags)"},
		{"--colour", "flag provided but not defined: -colour (twilld --help lists the flags)"},
		{"--ip-masq=perhaps", `invalid boolean value "perhaps" for -ip-masq: want true or false (twilld --help lists the flags)`},
		{"--healthz-port 99999999999999999999", `invalid value "99999999999999999999" for flag -healthz-port: want a whole number (twilld --help lists the flags)`},
		{"up", `unexpected argument "up": twilld takes flags only`},
		{"--public-ip nowhere", `--public-ip "nowhere": want an IPv4 address`},
		{"--public-ip fd00::1", `--public-ip "fd00::1": want an IPv4 address`},
		{"--public-ipv6 10.0.0.1", `--public-ipv6 "10.0.0.1": want an IPv6 address`},
		{"--iface-can-reach x", `--iface-can-reach "x": want an IP address`},
		{"--iface-regex (", `--iface-regex "(": error parsing regexp: missing closing ): ` + "`(`"},
		{"--no-masquerade-cidr 10.0.0.0/8", "--no-masquerade-cidr has no effect without --ip-masq: give both or neither"},
		{"--ip-masq --no-masquerade-cidr 10.0.0.1", `invalid value "10.0.0.1" for flag -no-masquerade-cidr: ` +
			`"10.0.0.1" is not a network: want one such as 10.0.0.0/8 or fd00::/8 (twilld --help lists the flags)`},
		{"--ip-masq --no-masquerade-cidr fd00::/8,10.0.0.1/8", `invalid value "fd00::/8,10.0.0.1/8" for flag -no-masquerade-cidr: ` +
			`10.0.0.1/8 has host bits set: want 10.0.0.0/8 (twilld --help lists the flags)`},
		{"--ip-masq-agent-config /etc/config/ip-masq-agent",
			"--ip-masq-agent-config has no effect without --ip-masq: give both or neither"},
		{"--cluster-cidr ::/0", "--cluster-cidr ::/0 holds every address: want the network of pods"},
		{"--flannel-external-ip", "--flannel-external-ip needs --kube-subnet-mgr: the ExternalIP is the Node object's"},
		{"--flannel-external-ip --kube-subnet-mgr --public-ipv6=::1",
			"--flannel-external-ip and --public-ip both say what to advertise: give one"},
		{"--keep-node-source maybe", `--keep-node-source: keep local addresses "maybe": want routed, always or never`},
		{"--subnet-lease-renew-margin 1440", "--subnet-lease-renew-margin 1440: want 1 to 1439 minutes"},
		{"--iptables-forward-rules=last", `invalid boolean value "last" for -iptables-forward-rules: want true, false or first (twilld --help lists the flags)`},
		{"--bridge= --reservations-dir /var/lib/cni/networks/cbr0",
			"--reservations-dir needs a --bridge: by its ports twilld knows which pods there are"},
		{"--bridge a/b", `--bridge "a/b": want the name of an interface, of up to 15 letters, or nothing`},
		{"--bridge a-name-of-sixteen", `--bridge "a-name-of-sixteen": want the name of an interface, of up to 15 letters, or nothing`},
		{"--cluster-network-policy", "--cluster-network-policy has no effect without --network-policy: give both or neither"},
		{"--network-policy-log", "--network-policy-log has no effect without --network-policy: give both or neither"},
		{"--network-policy --kube-subnet-mgr --network-policy-budget 0", "--network-policy-budget is 0 and --network-policy-node-budget is 500000, " +
			"want numbers from 1 on, of which the second is not the smaller one"},
		{"--fast-path yes", `--fast-path "yes": want auto, on or off`},
		{"--reach-dns 10.96.0.10,coredns", `invalid value "10.96.0.10,coredns" for flag -reach-dns: ` +
			`"coredns" is not an address: want one such as 10.96.0.10 (twilld --help lists the flags)`},
		{"--reach-dns 10.96.0.10 --reach-peers 0", "--reach-dns has no effect with --reach-peers 0: give both or neither"},
		{"--log-format xml", `--log-format "xml": want text or json`},
		{"--healthz-port http", `invalid value "http" for flag -healthz-port: want a whole number (twilld --help lists the flags)`},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out bytes.Buffer
			err := flagErrors(strings.Fields(c.args), &out)
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if out.Len() > 0 {
				t.Errorf("printed %q beside the error", out.String())
			}
		})
	}
}

// flagErrors is the first error of the steps that look at flags alone.
func flagErrors(args []string, out *bytes.Buffer) error {
	o, err := parseFlags(args, noEnv, out)
	if err != nil {
		return err
	}
	_, settings := o.settings()
	_, renew := o.renew()
	_, _, log := newLogger(o, out)
	for _, err := range []error{settings, renew, log} {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestBadEnvironmentNamesTheVariable(t *testing.T) {
	_, err := parseFlags(nil, func(name string) (string, bool) { return "soon", name == "FLANNELD_HEALTHZ_PORT" }, nil)
	if want := `environment FLANNELD_HEALTHZ_PORT="soon": want a whole number`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestReservationsDir holds which directory an agent frees addresses in.
func TestReservationsDir(t *testing.T) {
	conflist := filepath.Join(t.TempDir(), "cni-conf.json")
	for _, tt := range []struct{ text, source, flag, want string }{
		{`{"name": "cbr0"}`, conflist, "", "/var/lib/cni/networks/cbr0"},
		{`{"name": "cni0"}`, conflist, "", "/var/lib/cni/networks/cni0"},
		{`{"name": "cni0"}`, conflist, "/elsewhere/net", "/elsewhere/net"},
		{`{"name": "../etc"}`, conflist, "", "/var/lib/cni/networks/cbr0"},
		{`{"name": ".."}`, conflist, "", "/var/lib/cni/networks/cbr0"},
		{`{`, conflist, "", "/var/lib/cni/networks/cbr0"},
		{`{"name": "cni0"}`, conflist + "-none", "", "/var/lib/cni/networks/cbr0"},
		{`{"name": "cni0"}`, "", "", ""},
	} {
		if err := os.WriteFile(conflist, []byte(tt.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := (podOptions{reservations: tt.flag, grace: 1}).store(tt.source); got != tt.want {
			t.Errorf("conflist %q, %s, flag %q: %q, want %q", tt.text, tt.source, tt.flag, got, tt.want)
		}
	}
	if got := (podOptions{reservations: "/elsewhere/net"}).store(conflist); got != "" {
		t.Errorf("without a grace period: %q, want none", got)
	}
}

// TestNetworkLists: networks are repeated or separated by commas, in the environment too.
func TestNetworkLists(t *testing.T) {
	env := func(name string) (string, bool) {
		return "fd00:9::/48, 10.9.0.0/16", name == "TWILLD_CLUSTER_CIDR"
	}
	o, err := parseFlags([]string{"--ip-masq", "--no-masquerade-cidr=10.0.0.0/8,::/0", "--no-masquerade-cidr=192.0.2.1/32"}, env, nil)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := o.firewall()
	if got := fmt.Sprint(rules.Exempt, rules.Clusters, err); got != "[10.0.0.0/8 ::/0 192.0.2.1/32] [fd00:9::/48 10.9.0.0/16] <nil>" {
		t.Errorf("got %s", got)
	}
}

// TestSystemdOptions: every variable in the file that the Debian package brings is a flag's, also those in comments.
func TestSystemdOptions(t *testing.T) {
	data, err := os.ReadFile("../../deploy/systemd/twilld.default")
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "#"), "=")
		if ok && !strings.Contains(name, " ") && name != "TWILLD_OPTS" { // which is the unit's
			values[name] = value
		}
	}
	asked := map[string]bool{}
	o, err := parseFlags(nil, func(name string) (string, bool) {
		asked[name] = true
		value, ok := values[name]
		return value, ok
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name := range values {
		if !asked[name] {
			t.Errorf("%s is no flag of twilld's", name)
		}
	}
	if _, err := o.settings(); err != nil || len(values) < 5 || !o.ipMasq || o.iface.String() != "eth1" {
		t.Errorf("%d variables give %+v, %v", len(values), o, err)
	}
}

// TestNoBridge: without a bridge nobody's addresses are freed.
func TestNoBridge(t *testing.T) {
	for args, want := range map[string]string{"--cni-conf-source=x --bridge=": "", "--cni-conf-source=x": "/var/lib/cni/networks/cbr0"} {
		o, err := parseFlags(strings.Fields(args), noEnv, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := o.settings(); s.Reservations != want || err != nil {
			t.Errorf("%s: addresses are freed in %q (%v), want %q", args, s.Reservations, err, want)
		}
	}
}
