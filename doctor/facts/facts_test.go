package facts

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/subnet"
)

func TestFromFlags(t *testing.T) {
	s := FromFlags([]string{"--iface=eth1", "-subnet-file", "/x/subnet.env", "--ip-masq", "--iptables-forward-rules=false", "--healthz-port=10256",
		"--cni-conf-source=/src", "--ip-masq-fully-random-disable", "--keep-node-source=always"}, map[string]string{"TWILLD_BRIDGE": "br7", "FLANNELD_IFACE": "eth9"})
	if s.SubnetFile != "/x/subnet.env" || !s.Firewall.Masq || s.Firewall.Forward != 0 || s.Firewall.Random || s.Firewall.KeepLocal.String() != "always" {
		t.Errorf("got %+v", s)
	}
	if first := FromFlags([]string{"--iptables-forward-rules=first"}, nil); first.Firewall.Forward.String() != "first" {
		t.Errorf("got %+v", first)
	}
	if s.Bridge != "br7" || len(s.Choice.Names) != 1 || s.Choice.Names[0] != "eth1" || s.Health != "127.0.0.1:10256" || s.CNIDir != "/etc/cni/net.d/" {
		t.Errorf("got %+v", s)
	}
	if d := FromFlags(nil, nil); d.Checkpoint != "/var/lib/twill/checkpoint.json" || d.Firewall.Masq || d.Firewall.Forward != 1 || d.CNIDir != "" {
		t.Errorf("the defaults are %+v", d)
	}
}

const saved = `*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [1:60]
:DOCKER-USER - [0:0]
-A FORWARD -m comment --comment "a b" -j DOCKER-USER
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -s 10.0.0.0/8,192.168.0.1 -m set --match-set x src -j ACCEPT
-A DOCKER-USER -j RETURN
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE --random-fully
COMMIT
`

func TestParseSave(t *testing.T) {
	all := parseSave("ip", saved)
	if len(all) != 4 {
		t.Fatalf("got %d chains: %+v", len(all), all)
	}
	f := all[1]
	if f.Hook != "forward" || f.Policy != "drop" || len(f.Rules) != 4 || all[2].Hook != "" {
		t.Errorf("got %+v", f)
	}
	if r := f.Rules[0]; r.Verdict != "jump" || r.Target != "DOCKER-USER" || r.UnknownIf != "" {
		t.Errorf("the jump: %+v", r)
	}
	if r := f.Rules[1]; r.UnknownIf == "" {
		t.Errorf("a new connection is not RELATED: %+v", r)
	}
	if r := f.Rules[2]; r.Verdict != "reject" || !r.In.Not || r.Out.Name != "docker0" || r.DPort != 80 || r.UnknownIf != "" {
		t.Errorf("the REJECT: %+v", r)
	}
	if r := f.Rules[3]; r.UnknownIf == "" || len(r.Src.Prefixes) != 2 {
		t.Errorf("a set is not understood: %+v", r)
	}
	if r := all[3].Rules[0]; r.Verdict != "masquerade" || !r.Dst.Not || r.UnknownIf != "" {
		t.Errorf("the MASQUERADE: %+v", r)
	}
}

func TestParseNFT(t *testing.T) {
	all, err := parseNFT([]byte(`{"nftables": [{"metainfo": {}}, {"table": {"family": "inet", "name": "fw", "handle": 1}},
{"chain": {"family": "inet", "table": "fw", "name": "f", "handle": 2, "type": "filter", "hook": "forward", "prio": 10, "policy": "drop"}},
{"rule": {"family": "inet", "table": "fw", "chain": "f", "handle": 3, "expr": [
 {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": {"prefix": {"addr": "10.244.0.0", "len": 16}}}},
 {"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 8472}}, {"counter": {"packets": 0, "bytes": 0}}, {"drop": null}]}},
{"rule": {"family": "inet", "table": "fw", "chain": "f", "handle": 4, "expr": [
 {"match": {"op": "!=", "left": {"meta": {"key": "iifname"}}, "right": "cni0"}}, {"jump": {"target": "x"}}]}},
{"rule": {"family": "inet", "table": "fw", "chain": "f", "handle": 5, "expr": [
 {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}, {"accept": null}]}}]}`))
	if err != nil || len(all) != 1 || len(all[0].Rules) != 3 || all[0].Hook != "forward" || all[0].Priority != 10 || all[0].Policy != "drop" {
		t.Fatalf("%v: %+v", err, all)
	}
	rules := all[0].Rules
	if r := rules[0]; r.Verdict != "drop" || r.DPort != 8472 || r.Proto != "udp" || r.Src.Prefixes[0].String() != "10.244.0.0/16" || r.UnknownIf != "" {
		t.Errorf("the drop: %+v", r)
	}
	if r := rules[1]; r.Verdict != "jump" || r.Target != "x" || !r.In.Not {
		t.Errorf("the jump: %+v", r)
	}
	if r := rules[2]; r.UnknownIf == "" {
		t.Errorf("a new connection is not established: %+v", r)
	}
	if _, err := parseNFT([]byte(`{`)); err == nil {
		t.Error("half a document is read")
	}
}

// TestUnmarked: kube-proxy masquerades what it has marked, and the packets that are tried are not.
func TestUnmarked(t *testing.T) {
	all := parseSave("ip", `*nat
:POSTROUTING ACCEPT [0:0]
:KUBE-POSTROUTING - [0:0]
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
COMMIT
`)
	nft, err := parseNFT([]byte(`{"nftables": [
{"chain": {"family": "ip", "table": "kube-proxy", "name": "nat-postrouting", "type": "nat", "hook": "postrouting", "prio": 100, "policy": "accept"}},
{"chain": {"family": "ip", "table": "kube-proxy", "name": "masquerading"}},
{"rule": {"family": "ip", "table": "kube-proxy", "chain": "nat-postrouting", "expr": [{"jump": {"target": "masquerading"}}]}},
{"rule": {"family": "ip", "table": "kube-proxy", "chain": "masquerading", "expr": [
 {"match": {"op": "==", "left": {"&": [{"meta": {"key": "mark"}}, 16384]}, "right": 0}}, {"return": null}]}},
{"rule": {"family": "ip", "table": "kube-proxy", "chain": "masquerading", "expr": [
 {"mangle": {"key": {"meta": {"key": "mark"}}, "value": 0}}, {"masquerade": {"flags": "fully-random"}}]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	p := doctor.Packet{Src: netip.MustParseAddr("10.244.0.2"), Dst: netip.MustParseAddr("10.244.1.2"), Proto: "tcp", DPort: 80}
	for name, chains := range map[string][]doctor.Chain{"iptables": all, "nft": nft} {
		if d := doctor.Decide(chains, "postrouting", p); d.Verdict != "accept" {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestAgentSaysItsVersion(t *testing.T) {
	text := "# HELP twill_build_info 1; the version is a label.\n# TYPE twill_build_info gauge\ntwill_build_info{version=\"v1.2.3\"} 1\ntwill_last_apply_timestamp_seconds 1.7e+09\n"
	if got := buildOf(text); got != "v1.2.3" {
		t.Errorf("got %q", got)
	}
	if m := metrics(text); m["twill_last_apply_timestamp_seconds"] != 1.7e9 {
		t.Errorf("got %v", m)
	}
}

// TestNeeded: each address family of ipip has a module of its own.
func TestNeeded(t *testing.T) {
	pool4, pool6 := subnet.Pool{Network: netip.MustParsePrefix("10.244.0.0/16")}, subnet.Pool{Network: netip.MustParsePrefix("fc00::/48")}
	for want, pools := range map[string][]subnet.Pool{"ipip": {pool4}, "ip6_tunnel": {pool6}, "ipip ip6_tunnel": {pool4, pool6}} {
		var names []string
		for _, m := range needed(subnet.Config{Backend: "ipip", Pools: pools})[2:] {
			names = append(names, m.name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%v: got %s, want %s", pools, got, want)
		}
	}
}

// TestMissing asks this kernel: what is loaded or built in is there, and what has no option at all is not.
func TestMissing(t *testing.T) {
	release := kernelRelease()
	if got := missing(needed(subnet.Config{Backend: "vxlan"}), release); len(got) > 0 {
		t.Errorf("a kernel on which these tests run lacks %v", got)
	}
	if _, known := moduleFiles(release); !known && len(kernelConfig(release)) == 0 {
		t.Skip("this kernel does not say what it has")
	}
	got := missing([]module{{"nosuchnet", "CONFIG_NO_SUCH_NET"}}, release)
	if len(got) != 1 || !strings.HasPrefix(got[0], "nosuchnet (") {
		t.Errorf("got %v", got)
	}
}

func FuzzParseSave(f *testing.F) {
	f.Add(saved)
	f.Add("-A FORWARD\n*x\n:y\n-A y")
	f.Fuzz(func(t *testing.T, text string) { parseSave("ip", text) })
}

func FuzzParseNFT(f *testing.F) {
	f.Add([]byte(`{"nftables":[{"chain":{"name":"a"}},{"rule":{"chain":"a","expr":[{"match":{"op":"==","left":{},"right":1}}]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if all, err := parseNFT(data); err == nil {
			doctor.Decide(all, "forward", doctor.Packet{})
		}
	})
}
