package doctor

import (
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/vxlan"
	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// codes are the fields of Facts whose strings are names, codes or commands, by their types. All others are for people.
var codes = map[string][]string{
	"Facts":        {"Node", "Bridge", "Sysctls", "Release", "PortDevice"},
	"Agent":        {"Metrics", "Version", "Contended", "Unreached"},
	"Certificate":  {"Name"},
	"Lease":        {"Path"},
	"EnvFile":      {"Path", "Boot"},
	"Port":         {"Name", "Master", "PodMAC", "Takes"},
	"PodNeighbour": {"MAC"},
	"Interface":    {"Name"},
	"Pod":          {"Port"},
	"Route":        {"Dev"},
	"CutOff":       {"Namespace", "Name", "Sandbox", "Dev"},
	"Qdisc":        {"Dev", "Kind", "Handle", "Hook"},
	"Path":         {"Node"},
	"Hop":          {"Dev"},
	"OwnPath":      {},
	"NoModule":     {"Name"},
	"CNI":          {"Dir", "BinDir", "Ours", "Binaries"},
	"ConfFile":     {"Name", "Plugins", "SubnetFile"},
	"Reservations": {"Dir"},
	"Program":      {"Name", "Args"},
	"Probe":        {"Node"},
	"API":          {"Grant", "Stray", "Guard"},
	"Policies":     {"File"},
	"FastPath":     {"Devices"},
	"Chain":        {"Family", "Table", "Name", "Hook", "Tool"},
	"DevMatch":     {"Name"},
	"Rule":         {"Proto", "Target", "Delete"},
	"Skip":         {"Node"},
	"KeptGateway":  {"Who"},
}

// reword replaces every text for people by gibberish, and returns how many there were. Values of types of their own, such
// as a Severity, are codes, and netstate's objects have no texts for people.
func reword(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			n = reword(v.Elem())
		}
	case reflect.String:
		if v.Type() == reflect.TypeFor[string]() && v.CanSet() && v.String() != "" {
			v.SetString(fmt.Sprintf("xyzzy %d", v.Len()))
			n = 1
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			n += reword(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			n += reword(value)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			own := f.Type.PkgPath() == "" || f.Type.PkgPath() == reflect.TypeFor[Facts]().PkgPath()
			if f.IsExported() && !slices.Contains(codes[v.Type().Name()], f.Name) && own && f.Type != reflect.TypeFor[*bool]() {
				n += reword(v.Field(i))
			}
		}
	}
	return n
}

// pair is a node of two, as it should be, with the packet between their pods.
func pair(t *testing.T) (Facts, Flow) {
	t.Helper()
	f := healthy()
	b, _, err := vxlan.New([]netip.Prefix{prefix("10.244.0.0/16")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	lease := func(name, pods, underlay, mac string) subnet.Lease {
		return subnet.Lease{Node: name, Backend: "vxlan", Stacks: []subnet.Stack{{Subnet: prefix(pods), Underlay: addr(underlay),
			Data: []byte(`{"VNI":1,"VtepMAC":"` + mac + `"}`)}}}
	}
	f.Lease.Network.Backend = "vxlan"
	f.Underlay = backend.Node{Underlays: []backend.Underlay{{Dev: "eth0", Local: addr("192.0.2.1"), Public: addr("192.0.2.1"), MTU: 1500}}}
	f.Lease.Snapshot = subnet.Snapshot{Local: lease("n1", "10.244.1.0/24", "192.0.2.1", "0e:00:00:00:00:01"),
		Peers: []subnet.Lease{lease("n2", "10.244.2.0/24", "192.0.2.2", "0e:00:00:00:00:02")}}
	f.Want, _ = b.Desired(f.Underlay, f.Lease.Snapshot)
	f.Have = netstate.State{}
	f.Have.Merge(f.Want)
	f.Have.Add(netstate.Bridge{Name: "cni0", MTU: 1450, Up: true})
	f.Paths = []Path{{Node: "n2", Subnet: prefix("10.244.2.0/24"), Pod: addr("10.244.2.2"), Underlay: addr("192.0.2.2"),
		Hop: Hop{Dev: "flannel.1"}, Outer: Hop{Dev: "eth0"}, Neighbour: Neighbour{State: 2, MAC: "0e:00:00:00:01:02"}}}
	f.Pods = []Pod{{addr("10.244.1.2"), "veth1"}}
	f.Ports = []Port{{Name: "veth1", Master: "cni0", Up: true, Pod: true}}
	f.Routes = []Route{{Dst: prefix("10.244.1.0/32"), Dev: "flannel.1"}}
	if found := Check(f); len(found) > 0 {
		t.Fatalf("a healthy node has %+v", found)
	}
	return f, Flow{Src: addr("10.244.1.2"), Dst: addr("10.244.2.2"), From: "n1", To: "n2"}
}

// without takes objects from what the kernel has.
func without(f *Facts, gone func(netstate.Object) bool) {
	for k, o := range f.Have {
		if gone(o) {
			delete(f.Have, k)
		}
	}
	f.Plan = netstate.Diff(f.Want, f.Have)
}

func chain(hook string, policy rules.Verdict, r ...rules.Rule) []rules.Chain {
	for i := range r {
		r[i].Text, r[i].Delete = "policy drop", "iptables -D …"
	}
	return []rules.Chain{{Family: "ip", Table: "filter", Name: hook, Hook: hook, Policy: policy, Rules: r, Tool: "iptables"}}
}

// ailments are what is told apart by a code that comes with a text, by the finding, and the place at which a trace stops.
var ailments = []struct {
	finding, place string
	inflict        func(*Facts)
}{
	{"lease-damaged", "", func(f *Facts) { f.Lease.Error = "no-lease: no such file" }},
	{"env-damaged", "", func(f *Facts) { f.Env.Error = "no such file" }},
	{"underlay-missing", "underlay", func(f *Facts) {
		f.NoUnderlay = map[netstate.Family]string{netstate.IPv4: "no interface with an IPv6 address"}
	}},
	{"underlay-missing", "", func(f *Facts) {
		f.NoUnderlay = map[netstate.Family]string{netstate.IPv6: "no interface with an IPv4 address"}
	}},
	{"node-name-taken", "", func(f *Facts) { f.Agent.NameTakenBy = "192.0.2.9" }},
	{"underlay-taken", "", func(f *Facts) {
		f.Taken = []Taken{{Addr: netip.MustParseAddr("192.0.2.1"), MAC: netstate.MAC{2, 5: 9}}}
	}},
	{"family-left-out", "", func(f *Facts) { f.LeftOut = "no interface with an IPv6 address" }},
	{"duplicate-mac", "", func(f *Facts) {
		f.Skips = []subnet.Skip{{Node: "n3", Code: subnet.DuplicateMAC, Detail: "its subnet is n1's"}}
	}},
	{"duplicate-key", "", func(f *Facts) {
		f.Skips = []subnet.Skip{{Node: "n3", Code: subnet.DuplicateKey, Detail: "its VTEP MAC is n1's"}}
	}},
	{"duplicate-subnet", "", func(f *Facts) { f.Skips = []subnet.Skip{{Node: "n3", Code: subnet.DuplicateSubnet, Detail: "its MAC"}} }},
	{"duplicate-underlay", "", func(f *Facts) { f.Skips = []subnet.Skip{{Node: "n3", Code: subnet.OwnAddress, Detail: "its MAC"}} }},
	{"peer-skipped", "peer's record", func(f *Facts) {
		f.Skips = []subnet.Skip{{Node: "n2", Code: subnet.BackendData, Detail: "its VTEP MAC is another node's"}}
		without(f, func(o netstate.Object) bool { _, ok := o.(netstate.Route); return ok })
		f.Plan = nil
	}},
	{"udp-port-taken", "overlay device", func(f *Facts) { f.PortOwner = "UDP port 8472 is held by nobody" }},
	{"module-missing", "overlay device", func(f *Facts) { f.NoModules = []NoModule{{"vxlan", "CONFIG_VXLAN is not set"}} }},
	{"policy-rule", "policy rules", func(f *Facts) {
		f.PolicyRules, f.Paths[0].Hop = []string{"ip rule 5: from all lookup 5"}, Hop{Error: "a blackhole route takes it"}
	}},
	{"underlay-unreachable", "way to the node", func(f *Facts) { f.Paths[0].Outer = Hop{Error: "no route leads there"} }},
	{"underlay-neighbour", "neighbour on the underlay", func(f *Facts) {
		f.Paths[0].Neighbour = Neighbour{State: netstate.NeighPermanent, MAC: "reachable"}
	}},
	{"peer-unanswered", "between the nodes", func(f *Facts) { f.Paths[0].Neighbour.State = netstate.NeighFailed }},
	{"forward-policy", "forward rules", func(f *Facts) { f.Chains = chain("forward", rules.Drop) }},
	{"forward-rejected", "forward rules", func(f *Facts) { f.Chains = chain("forward", rules.Accept, rules.Rule{Verdict: rules.Reject}) }},
	{"masquerade-catches-pods", "", func(f *Facts) {
		f.Chains = chain("postrouting", rules.Accept, rules.Rule{In: from("cni0"), Verdict: rules.Masquerade})
	}},
	{"prerouting-dropped", "prerouting rules", func(f *Facts) {
		f.Chains = chain("prerouting", rules.Accept, rules.Rule{In: from("cni0"), Verdict: rules.Drop})
	}},
	{"route-missing", "route", func(f *Facts) {
		without(f, func(o netstate.Object) bool { _, ok := o.(netstate.Route); return ok })
	}},
	{"neighbour-missing", "neighbour", func(f *Facts) {
		without(f, func(o netstate.Object) bool { _, ok := o.(netstate.Neigh); return ok })
	}},
	{"vtep-address", "overlay device's address", func(f *Facts) {
		without(f, func(o netstate.Object) bool { _, ok := o.(netstate.Addr); return ok })
	}},
	{"network-overlap", "", func(f *Facts) {
		f.Interfaces = append(f.Interfaces, netstate.Interface{Name: "lo", Addrs: []netip.Prefix{prefix("10.244.1.1/24")}})
	}},
	{"route-shadowed", "", func(f *Facts) {
		f.Routes = append(f.Routes, Route{Dst: prefix("10.244.1.0/25")})
	}},
	{"pod-mtu", "", func(f *Facts) { f.Ports[0].MTU = 1500 }},
	{"no-carrier", "carrier", func(f *Facts) {
		f.Ports = append(f.Ports, Port{Name: "flannel.1", Up: true, NoCarrier: true})
	}},
	{"no-carrier", "carrier", func(f *Facts) { f.Ports = append(f.Ports, Port{Name: "eth0", Up: true, NoCarrier: true}) }},
	{"device-taken", "device above the bridge", func(f *Facts) { f.Ports = append(f.Ports, Port{Name: "m", Takes: "cni0"}) }},
	{"device-taken", "device above the underlay's or the overlay's", func(f *Facts) {
		f.Ports = append(f.Ports, Port{Name: "m", Takes: "flannel.1"})
	}},
	{"route-shadowed", "", func(f *Facts) { f.Own = []OwnPath{{prefix("10.244.1.0/24"), Hop{Error: "no route"}}} }},
	{"pod-neighbour", "pod's neighbour entry", func(f *Facts) {
		f.PodNeighbours = []PodNeighbour{{addr("10.244.1.2"), "02:00:00:00:00:99"}}
	}},
	{"pod-neighbour", "", func(f *Facts) {
		f.Ports[0].PodMAC = "0a:58:0a:f4:01:02"
		f.PodNeighbours = []PodNeighbour{{addr("10.244.1.2"), "0a:58:0a:f4:01:02"}, {addr("10.244.1.3"), "02:00:00:00:00:99"}}
	}},
	{"pod-link-down", "pod's interface", func(f *Facts) { f.Ports[0].Up = false }},
	{"pod-link-down", "", func(f *Facts) { f.Ports = append(f.Ports, Port{Name: "veth2", Master: "cni0", Pod: true}) }},
	{"pod-link-deleted", "pod's interface", func(f *Facts) {
		f.CutOff = []CutOff{{Namespace: "default", Name: "a", Dev: "veth1", Addrs: []netip.Addr{addr("10.244.1.2")}}}
	}},
	{"pod-link-deleted", "", func(f *Facts) {
		f.CutOff = []CutOff{{Sandbox: "5ba6d0", Dev: "veth3", Addrs: []netip.Addr{addr("10.244.1.3")}}}
	}},
	{"qdisc-drops", "queueing discipline", func(f *Facts) {
		f.Qdiscs = []Qdisc{{Dev: "flannel.1", Kind: "netem", Handle: "8001:", Hook: "root", Dropped: 4}}
	}},
	{"qdisc-drops", "", func(f *Facts) {
		f.Qdiscs = []Qdisc{{Dev: "eth0", Kind: "tbf", Handle: "1:", Hook: "root", Dropped: 1, Passed: 9}}
	}},
	{"qdisc-drops", "", func(f *Facts) {
		f.Qdiscs = []Qdisc{{Dev: "cni0", Kind: "clsact", Handle: "ffff:", Hook: "clsact", Dropped: 1}}
	}},
	{"conflist-invalid", "", func(f *Facts) {
		f.CNI = CNI{Dir: "/x", Ours: "a", Files: []ConfFile{{Name: "a", Error: "it has no plugins"}}}
	}},
	{"conflist-shadowed", "", func(f *Facts) {
		f.CNI = CNI{Dir: "/x", Ours: "b", Files: []ConfFile{{Name: "a", Carries: true}, {Name: "aa", Error: "x"}, {Name: "ab"}, {Name: "b"}}}
	}},
	{"pods-of-old-lease", "", func(f *Facts) { keepGateway(f, "10.244.77.1/24") }},
	{"route-shadowed", "", func(f *Facts) { // the peer has the old subnet now
		keepGateway(f, "10.244.2.1/24")
		f.Paths[0].Hop.Dev = "cni0"
	}},
	{"certificate-ends", "", func(f *Facts) { f.Agent.Certificates = []Certificate{{Name: "etcd-certfile /x", Left: -time.Hour}} }},
	{"file-contended", "", func(f *Facts) { f.Agent.Contended = []string{"/x/a"} }},
	{"agent-deaf", "", func(f *Facts) { f.Agent.Unresponsive, f.Agent.NotReady = true, "no lease" }},
	{"agent-not-ready", "", func(f *Facts) { f.Agent.NotReady = "connection refused" }},
	{"runner-down", "agent", func(f *Facts) { f.Agent.Runner = &Runner{Error: "it has not started yet", Detail: "running"} }},
	{"policies-not-enforced", "", func(f *Facts) {
		f.Policies.Wanted, f.Agent.Policies = true, &PolicyStatus{Error: "the device kube-ipvs0 is there"}
		f.Sysctls["net/bridge/bridge-nf-call-iptables"] = "1"
	}},
	{"fastpath-off", "", func(f *Facts) {
		f.FastPath.Wanted, f.Agent.FastPath = true, &FastPathStatus{Why: "no peer is reached in a way that it knows"}
	}},
	{"fastpath-orphan", "", func(f *Facts) { f.FastPath.Devices = []string{"cni0"} }},
	{"clock-skew", "", func(f *Facts) { f.API = API{Problem: ExpiredCert, Error: "Unauthorized"} }},
	{"nodes-read", "", func(f *Facts) { f.API = API{Stray: "n9", Guard: "n1"} }},
	{"api-trouble", "", func(f *Facts) {
		f.API = API{Problem: Unauthorized, Error: "certificate has expired or is not yet valid"}
	}},
	{"api-trouble", "", func(f *Facts) {
		f.API = API{Problem: Forbidden, Grant: "u the verb get on nodes", Error: "too many requests"}
	}},
	{"path-mtu", "", func(f *Facts) {
		f.Probes = []Probe{{Node: "n2", Kind: ProbeLarge, Error: "no reply", Sent: -1, Seen: -1}}
	}},
	{"tcp-lost", "", func(f *Facts) {
		f.Probes = []Probe{{Node: "n2", Kind: ProbeTCP, Error: "no reply", Sent: -1, Seen: -1}}
	}},
	{"peer-unanswered", "between the nodes", func(f *Facts) {
		f.Probes = []Probe{{Node: "n2", Kind: ProbeUnderlay, Error: "no reply", Sent: -1, Seen: -1}}
	}},
}

func from(name string) rules.DevMatch { return rules.DevMatch{Name: name} }

// TestReword: no diagnosis reads a text that is for people. Each ailment, also with a text that sounds like another's, is
// found, and stops a trace, just the same after all texts were replaced.
func TestReword(t *testing.T) {
	for i, a := range ailments {
		f, flow := pair(t)
		a.inflict(&f)
		plain, trace := Check(f), FollowHere(f, flow)
		if len(plain) == 0 || plain[0].ID != a.finding {
			t.Errorf("%d: want %s, got %+v", i, a.finding, plain)
		}
		if s := trace.Stopped; s == nil && a.place != "" || s != nil && s.Place != a.place {
			t.Errorf("%d, %s: want a stop at %q, got %+v", i, a.finding, a.place, s)
		}
		words := reword(reflect.ValueOf(&f))
		reworded, again := Check(f), FollowHere(f, flow)
		for k := range reworded {
			reworded[k].Expected, reworded[k].Actual, reworded[k].More = plain[k].Expected, plain[k].Actual, plain[k].More
		}
		forget(&trace)
		forget(&again)
		if !reflect.DeepEqual(reworded, plain) || !reflect.DeepEqual(again, trace) {
			t.Errorf("%d: with %d texts reworded %+v becomes %+v,\n%+v becomes %+v", i, words, plain, reworded, trace, again)
		}
	}
}

// forget leaves out the entries, which are for people too.
func forget(t *Trace) {
	for _, steps := range [][]Step{t.Forward, t.Back} {
		for i := range steps {
			steps[i].Entry = ""
		}
	}
	if t.Stopped != nil {
		t.Stopped.Entry = ""
	}
}

// takes reports whether a command takes the underlay's device or address from a node, its way out, or what the agent would
// write again.
func takes(f Facts, command string) bool {
	patterns := []string{`route (del|flush) (default|0\.0\.0\.0/0|::/0)`, `nft (delete|flush) .*flannel-ipv`, `-F (FLANNEL|TWILL)-`}
	for _, u := range f.Underlay.Underlays {
		patterns = append(patterns, `(addr|link) (del|delete|flush)\b.*\b`+u.Dev+`\b`, `link set (dev )?`+u.Dev+`\b.*\bdown`)
	}
	return regexp.MustCompile(strings.Join(patterns, "|")).MatchString(command)
}

// TestCommandsAreCommands: what the page has a button to copy for begins with a program and has no advice in it, which is for
// people and stands in the fix.
func TestCommandsAreCommands(t *testing.T) {
	prose := regexp.MustCompile(`[,(.;]( |$)| (or|and|unless|then) `)
	programs, commands := []string{"ip", "iptables", "kubectl", "mv", "rm", "sysctl", "tc", "twillctl"}, 0
	inflicted := append(ailments[:len(ailments):len(ailments)], struct {
		finding, place string
		inflict        func(*Facts)
	}{finding: "qdisc-drops", inflict: func(f *Facts) {
		f.Qdiscs = []Qdisc{{Dev: "cni0", Kind: "tbf", Handle: "8001:", Hook: "root", Dropped: 7}}
	}})
	for _, a := range inflicted {
		f, _ := pair(t)
		a.inflict(&f)
		for _, x := range Check(f) {
			if x.Fix == "" {
				t.Errorf("%s: no fix", x.ID)
			}
			if x.Command == "" {
				continue
			}
			commands++
			if program, _, _ := strings.Cut(x.Command, " "); prose.MatchString(x.Command) || !slices.Contains(programs, program) {
				t.Errorf("%s: %q is no command", x.ID, x.Command)
			}
			if takes(f, x.Command) {
				t.Errorf("%s: %q takes something from the node that it needs", x.ID, x.Command)
			}
		}
	}
	if commands < 5 {
		t.Errorf("only %d commands were seen", commands)
	}
	if f := lossFinding(locate.Loss{}); f.Command != "" || f.Fix == "" {
		t.Errorf("a loss by what is not known: got command %q, fix %q", f.Command, f.Fix)
	}
}

// TestNamesRunNothing: a device may have a name that a shell would run. The finding names it, and has no command.
func TestNamesRunNothing(t *testing.T) {
	for _, name := range []string{"$(reboot)", "`reboot`", ";reboot;", "&&reboot", "|reboot", ">/etc/passwd", "'", `"`, "#"} {
		f, _ := pair(t)
		f.Qdiscs = []Qdisc{{Dev: name, Kind: "tbf", Handle: "8001:", Hook: "root", Dropped: 7}}
		loss := locate.Loss{Exact: true, By: locate.Object{Kind: locate.Link, Text: name + ": down", Fix: "ip link set dev " + name + " up"}}
		for _, x := range append(Check(f), lossFinding(loss)) {
			if x.Command != "" || strings.Contains(x.Fix, name) || x.Fix == "" || !strings.Contains(x.Object, name) {
				t.Errorf("%q: command %q, fix %q, object %q", name, x.Command, x.Fix, x.Object)
			}
		}
	}
	if f := lossFinding(locate.Loss{Exact: true, By: locate.Object{Text: "eth0: down", Fix: "ip link set dev eth0 up"}}); f.Command == "" {
		t.Error("no command for an ordinary name")
	}
}
