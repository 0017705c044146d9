package rules

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// TestDecide walks chains as the kernel does.
func TestDecide(t *testing.T) {
	pods := Match{Prefixes: []netip.Prefix{prefix("10.244.0.0/16")}}
	base := func(rules ...Rule) Chain {
		return Chain{Family: "ip", Table: "filter", Name: "FORWARD", Hook: "forward", Policy: "drop", Rules: rules}
	}
	user := func(rules ...Rule) Chain { return Chain{Family: "ip", Table: "filter", Name: "USER", Rules: rules} }
	jump := Rule{Verdict: Jump, Target: "USER"}
	p := Packet{Src: addr("10.244.1.2"), Dst: addr("10.244.2.2"), In: "cni0", Out: "flannel.1", Proto: "tcp", DPort: 80}
	for name, test := range map[string]struct {
		chains []Chain
		want   Verdict
	}{
		"policy":               {[]Chain{base()}, "drop"},
		"accepted":             {[]Chain{base(Rule{Src: pods, Verdict: Accept})}, "accept"},
		"first rule wins":      {[]Chain{base(Rule{Verdict: Reject}, Rule{Src: pods, Verdict: Accept})}, "reject"},
		"not":                  {[]Chain{base(Rule{Src: Match{pods.Prefixes, true}, Verdict: Reject}, Rule{Verdict: Accept})}, "accept"},
		"wildcard device":      {[]Chain{base(Rule{In: DevMatch{Name: "cni+"}, Verdict: Accept})}, "accept"},
		"nft wildcard device":  {[]Chain{base(Rule{Out: DevMatch{Name: "flannel*"}, Verdict: Accept})}, "accept"},
		"other device":         {[]Chain{base(Rule{In: DevMatch{Name: "docker0"}, Verdict: Accept})}, "drop"},
		"unknown never holds":  {[]Chain{base(Rule{UnknownIf: "-m set", Verdict: Reject}, Rule{Verdict: Accept})}, "accept"},
		"jump accepts":         {[]Chain{base(jump), user(Rule{Verdict: Accept})}, "accept"},
		"jump returns":         {[]Chain{base(jump, Rule{Verdict: Accept}), user(Rule{Verdict: Return}, Rule{Verdict: Drop})}, "accept"},
		"goto ends the caller": {[]Chain{base(Rule{Verdict: Goto, Target: "USER"}, Rule{Verdict: Accept}), user()}, "drop"},
		"loop":                 {[]Chain{base(jump), user(jump)}, "drop"},
		"every chain decides": {[]Chain{base(Rule{Verdict: Accept}), {Family: "inet", Table: "fw", Name: "f", Hook: "forward", Priority: 5, Policy: "accept",
			Rules: []Rule{{DPorts: Ports{{80, 80}}, Proto: "tcp", Verdict: Drop}}}}, "drop"},
		"other family": {[]Chain{{Family: "ip6", Hook: "forward", Policy: "drop"}}, "accept"},
	} {
		if got := Decide(test.chains, "forward", p); got.Verdict != test.want {
			t.Errorf("%s: got %+v, want %s", name, got, test.want)
		}
	}
}

// TestState: before connection tracking every packet's state is invalid. The kernel (6.18) does the same with a real ping,
// in nftables and in raw of iptables.
func TestState(t *testing.T) {
	for name, c := range map[string]struct {
		chain Chain
		state StateMatch
		want  Verdict
	}{
		"new in raw":         {Chain{Table: "raw", Tool: "iptables"}, StateMatch{Any: []string{"new"}}, Accept},
		"invalid in raw":     {Chain{Table: "raw", Tool: "iptables"}, StateMatch{Any: []string{"invalid"}}, Drop},
		"not new in raw":     {Chain{Table: "raw", Tool: "iptables"}, StateMatch{[]string{"new"}, true}, Drop},
		"new in mangle":      {Chain{Table: "mangle", Tool: "iptables"}, StateMatch{Any: []string{"new"}}, Drop},
		"new before":         {Chain{Priority: -201}, StateMatch{Any: []string{"new"}}, Accept},
		"invalid before":     {Chain{Priority: -300}, StateMatch{Any: []string{"invalid", "new"}}, Drop},
		"new at":             {Chain{Priority: -200}, StateMatch{Any: []string{"established", "new"}}, Drop},
		"invalid after":      {Chain{Priority: -150}, StateMatch{Any: []string{"invalid"}}, Accept},
		"not new after":      {Chain{}, StateMatch{[]string{"new"}, true}, Accept},
		"not related after":  {Chain{}, StateMatch{[]string{"related"}, true}, Drop},
		"new in any forward": {Chain{Hook: "forward", Priority: -300}, StateMatch{Any: []string{"new"}}, Drop},
	} {
		c.chain.Family, c.chain.Policy = "ip", Accept
		c.chain.Rules = []Rule{{State: c.state, Verdict: Drop}}
		if c.chain.Hook == "" {
			c.chain.Hook = "prerouting"
		}
		if got := Decide([]Chain{c.chain}, c.chain.Hook, Packet{Src: addr("10.244.1.2")}); got.Verdict != c.want {
			t.Errorf("%s: %s, want %s", name, got.Verdict, c.want)
		}
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
	all := ParseSave("ip", saved)
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
	if r := f.Rules[1]; r.UnknownIf != "" || r.matches(trial{state: "new"}) || !r.matches(trial{state: "related"}) {
		t.Errorf("a new connection is not RELATED: %+v", r)
	}
	if r := f.Rules[2]; r.Verdict != "reject" || !r.In.Not || r.Out.Name != "docker0" || r.DPorts.String() != "80" || r.UnknownIf != "" {
		t.Errorf("the REJECT: %+v", r)
	}
	if r := f.Rules[3]; r.UnknownIf == "" || len(r.Src.Prefixes) != 2 {
		t.Errorf("a set is not understood: %+v", r)
	}
	if r := all[3].Rules[0]; r.Verdict != "masquerade" || !r.Dst.Not || r.UnknownIf != "" {
		t.Errorf("the MASQUERADE: %+v", r)
	}
}

// TestSavedComments: a rule is seen whatever its comment says. iptables-save escapes quotation marks, apostrophes and backslashes.
func TestSavedComments(t *testing.T) {
	for _, comment := range []string{`"a \"quoted word"`, `"it\'s"`, `"a back\\slash"`, `"a \\"`, `plain`, `""`} {
		all := ParseSave("ip", "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -s 10.244.1.2/32 -m comment --comment "+comment+" -j DROP\nCOMMIT\n")
		if len(all) != 1 || len(all[0].Rules) != 1 || all[0].Rules[0].Verdict != "drop" || all[0].Rules[0].UnknownIf != "" {
			t.Errorf("%s: got %+v", comment, all)
		}
	}
}

// TestDeleteIsOneRule: the command that deletes a rule is the rule's words and nothing else, whatever its comment says.
func TestDeleteIsOneRule(t *testing.T) {
	all := ParseSave("ip", "*filter\n:FORWARD ACCEPT [0:0]\n"+
		`-A FORWARD -m comment --comment "$(echo run) `+"`echo run`"+` it\'s \"\\" -j DROP`+"\nCOMMIT\n")
	command := all[0].Rules[0].Delete
	out, err := exec.Command("sh", "-c", `iptables() { printf '%s|' "$@"; }; `+command).Output()
	const want = `-t|filter|-D|FORWARD|-m|comment|--comment|$(echo run) ` + "`echo run`" + ` it's "\|-j|DROP|`
	if err != nil || string(out) != want {
		t.Errorf("%s\ngot  %s (%v)\nwant %s", command, out, err, want)
	}
}

func TestParseNFT(t *testing.T) {
	all, err := ParseNFT([]byte(`{"nftables": [{"metainfo": {}}, {"table": {"family": "inet", "name": "fw", "handle": 1}},
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
	if r := rules[0]; r.Verdict != "drop" || r.DPorts.String() != "8472" || r.Proto != "udp" || r.Src.Prefixes[0].String() != "10.244.0.0/16" || r.UnknownIf != "" {
		t.Errorf("the drop: %+v", r)
	}
	if r := rules[1]; r.Verdict != "jump" || r.Target != "x" || !r.In.Not {
		t.Errorf("the jump: %+v", r)
	}
	if r := rules[2]; r.UnknownIf != "" || r.matches(trial{state: "new"}) || !r.matches(trial{state: "established"}) {
		t.Errorf("a new connection is not established: %+v", r)
	}
	if _, err := ParseNFT([]byte(`{`)); err == nil {
		t.Error("half a document is read")
	}
}

// TestHostFirewalls: what firewalls let in is not taken for stopped: ufw's rules ask whether an address is local and name
// several ports at once, and nftables has ranges and sets of them.
func TestHostFirewalls(t *testing.T) {
	ufw, err := os.ReadFile("../../test/guest/testdata/ufw.v4")
	if err != nil {
		t.Fatal(err)
	}
	const head = `{"nftables": [
{"chain": {"family": "ip", "table": "t", "name": "in", "handle": 1, "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}},
{"rule": {"family": "ip", "table": "t", "chain": "in", "handle": 2, "expr": [{"match": {"op": "==", "left": `
	const ports = head + `{"payload": {"protocol": "udp", "field": "dport"}}, "right": %s}}, {"accept": null}]}}]}`
	const local = head + `{"fib": {"result": "type", "flags": ["daddr"]}}, "right": "%s"}}, {"accept": null}]}}]}`
	nft := func(format, right string) []Chain {
		all, err := ParseNFT(fmt.Appendf(nil, format, right))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	for _, c := range []struct {
		name   string
		chains []Chain
		dport  int
		want   Verdict
	}{
		{"ufw, a port", ParseSave("ip", string(ufw)), 8472, Accept}, {"ufw, several", ParseSave("ip", string(ufw)), 51821, Accept},
		{"ufw, another", ParseSave("ip", string(ufw)), 8473, Drop},
		{"a range", nft(ports, `{"range": [51820, 51821]}`), 51821, Accept}, {"after it", nft(ports, `{"range": [51820, 51821]}`), 51822, Drop},
		{"a set", nft(ports, `{"set": [53, {"range": [8470, 8480]}]}`), 8472, Accept}, {"beside it", nft(ports, `{"set": [53, 8471]}`), 8472, Drop},
		{"local", nft(local, "local"), 8472, Accept}, {"multicast", nft(local, "multicast"), 8472, Drop},
	} {
		p := Packet{Src: addr("192.0.2.2"), Dst: addr("192.0.2.1"), In: "eth0", Proto: "udp", DPort: c.dport}
		if d := Decide(c.chains, "input", p); d.Verdict != c.want {
			t.Errorf("%s: %s by %s, want %s", c.name, d.Verdict, d.By(), c.want)
		}
	}
}

// TestUnmarked: kube-proxy masquerades what it has marked, and the packets that are tried are not.
func TestUnmarked(t *testing.T) {
	all := ParseSave("ip", `*nat
:POSTROUTING ACCEPT [0:0]
:KUBE-POSTROUTING - [0:0]
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
COMMIT
`)
	nft, err := ParseNFT([]byte(`{"nftables": [
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
	p := Packet{Src: addr("10.244.0.2"), Dst: addr("10.244.1.2"), Proto: "tcp", DPort: 80}
	for name, chains := range map[string][]Chain{"iptables": all, "nft": nft} {
		if d := Decide(chains, "postrouting", p); d.Verdict != "accept" {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func FuzzParseSave(f *testing.F) {
	f.Add(saved)
	f.Add("-A FORWARD\n*x\n:y\n-A y")
	f.Fuzz(func(t *testing.T, text string) { ParseSave("ip", text) })
}

func FuzzParseNFT(f *testing.F) {
	f.Add([]byte(`{"nftables":[{"chain":{"name":"a"}},{"rule":{"chain":"a","expr":[{"match":{"op":"==","left":{},"right":1}}]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if all, err := ParseNFT(data); err == nil {
			Decide(all, "forward", Packet{})
		}
	})
}
