package rules

import (
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

// TestUFW: what ufw lets in is not taken for stopped: its rules ask whether an address is local and name several ports at once.
func TestUFW(t *testing.T) {
	ufw, err := os.ReadFile("../../test/guest/testdata/ufw.v4")
	if err != nil {
		t.Fatal(err)
	}
	for port, want := range map[int]Verdict{8472: Accept, 51821: Accept, 8473: Drop} {
		p := Packet{Src: addr("192.0.2.2"), Dst: addr("192.0.2.1"), In: "eth0", Proto: "udp", DPort: port}
		if d := Decide(ParseSave("ip", string(ufw)), "input", p); d.Verdict != want {
			t.Errorf("port %d: %s by %s, want %s", port, d.Verdict, d.By(), want)
		}
	}
}

// TestProtocolNames: a protocol has one name, whatever /etc/protocols calls it and if there is no such file.
func TestProtocolNames(t *testing.T) {
	for name, proto := range map[string]string{"ipencap": "ipip", "4": "ipip", "ipv6": "ipv6", "41": "ipv6", "udp": "udp", "17": "udp"} {
		all := ParseSave("ip", "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p "+name+" -j DROP\nCOMMIT\n")
		if d := Decide(all, "input", Packet{Src: addr("192.0.2.2"), Proto: proto}); d.Verdict != Drop {
			t.Errorf("%s: the rule lets %s pass", name, proto)
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
	p := Packet{Src: addr("10.244.0.2"), Dst: addr("10.244.1.2"), Proto: "tcp", DPort: 80}
	if d := Decide(all, "postrouting", p); d.Verdict != "accept" {
		t.Errorf("got %+v", d)
	}
}

func FuzzParseSave(f *testing.F) {
	f.Add(saved)
	f.Add("-A FORWARD\n*x\n:y\n-A y")
	f.Fuzz(func(t *testing.T, text string) { ParseSave("ip", text) })
}
