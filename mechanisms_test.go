package twill_test

import (
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mechanisms are the jobs that few packages do, each with what shows in a file that does it: an import, a name of another
// package, or a text. A package that is to do one, too, uses one of these instead, or replaces it. Tests and tools are free.
var mechanisms = []struct {
	job      string
	shows    []string
	packages []string
}{
	{"watch files", []string{"unix.InotifyInit1"}, []string{"internal/filewatch"}},
	{"send echo requests", []string{"golang.org/x/net/icmp"}, []string{"internal/echo"}},
	{"open a socket for frames", []string{"unix.AF_PACKET"}, []string{"packet"}},
	{"see packets pass", []string{"packet.OpenTap", "packet.Wait"}, []string{"doctor/watch"}},
	{"look where the calling thread is", []string{"watch.Here"}, []string{"doctor/facts", "target"}},
	{"see why packets end", []string{"drops.Watch", "drops.WatchNamespaces"}, []string{"doctor/watch"}},
	{"trace packets through rules", []string{"ruletrace.Start"}, []string{"doctor/watch"}},
	{"see packets end", []string{"ringbuf.NewReader", "perf.NewReader"}, []string{"doctor/drops"}},
	{"code a route", []string{"unix.RTA_DST"}, []string{"doctor/unusual", "netstate/kernel", "plugin/wire"}},
	{"code a neighbour", []string{"unix.NDA_LLADDR"}, []string{"netstate/kernel", "netstate/rtnl"}},
	{"code a device", []string{"unix.IFLA_MTU"}, []string{"netstate/kernel", "netstate/rtnl", "plugin/wire"}},
	{"code an address", []string{"unix.IFA_LOCAL"}, []string{"netstate/kernel", "netstate/rtnl", "plugin/wire"}},
	{"split a rule of iptables", []string{"savedrule.Parse", "savedrule.Words"}, []string{"doctor/rules", "doctor/ruletrace", "netstate/firewall",
		"plugin/delegate"}},
	{"start iptables-save", []string{"iptables-save", "-save"}, []string{"doctor/facts", "doctor/ruletrace", "lab/rebuild", "plugin/delegate"}},
	{"start nft", []string{"nft"}, []string{"doctor/ruletrace", "internal/host", "lab/faults", "lab/rebuild", "plugin/delegate"}},
	{"read nf_tables", []string{"nfnl.Reader"}, []string{"doctor/rules/nft", "doctor/ruletrace", "netstate/filter", "netstate/firewall"}},
	{"decide by rules of others", []string{"rules.Decide"}, []string{"doctor"}},
	{"read the rules that it decides by", []string{"nft.Read", "rules.ParseSave"}, []string{"doctor/facts"}},
	{"split a rule of policies", []string{"grammar.Next"}, []string{"doctor/isolation", "netstate/filter"}},
	{"code nftables' rules", []string{"github.com/google/nftables/expr"}, []string{"doctor/rules/nft", "doctor/ruletrace", "lab/fabric",
		"netstate/filter", "netstate/firewall", "netstate/nfnl"}},
	{"back off", []string{"loop.Backoff", "wait.Backoff"}, []string{"agent", "agent/keptfile", "agent/reach", "cloud", "internal/kubeclient",
		"policy/enforce", "subnet/etcd"}},
	{"subscribe again", []string{"loop.Subscribe"}, []string{"agent", "policy/enforce"}},
	{"gather changes of pods", []string{"policy.PodChange"}, []string{"policy/announce", "policy/file", "policy/kube"}},
	{"begin to speak to the API server", []string{"rest.HTTPClientFor", "metadata.NewForConfigAndClient"}, []string{"internal/kubeclient"}},
}

// TestMechanisms: each job is done where the table says, and nowhere else.
func TestMechanisms(t *testing.T) {
	does := map[string]map[string]bool{} // by what shows, packages
	for _, file := range sources(t) {
		for word := range words(t, file) {
			if does[word] == nil {
				does[word] = map[string]bool{}
			}
			does[word][path.Dir(file)] = true
		}
	}
	for _, m := range mechanisms {
		got := map[string]bool{}
		for _, word := range m.shows {
			maps.Copy(got, does[word])
		}
		if list := slices.Sorted(maps.Keys(got)); !slices.Equal(list, m.packages) {
			t.Errorf("%s (%s): %v do it, and the table says %v", m.job, strings.Join(m.shows, ", "), list, m.packages)
		}
	}
}

// sources returns the Go files of programs: no tests, no tools, nothing that is only built to test.
func sources(t *testing.T) (files []string) {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "-co", "--exclude-standard", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range strings.Fields(string(out)) {
		first, _, _ := strings.Cut(file, "/")
		if !strings.HasSuffix(file, "_test.go") && first != "test" && first != "tools" {
			files = append(files, file)
		}
	}
	return files
}

// words returns the names of other packages that a file uses, as in unix.AF_PACKET, and its texts.
func words(t *testing.T, file string) map[string]bool {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	var s scanner.Scanner
	set := token.NewFileSet()
	s.Init(set.AddFile(file, -1, len(source)), source, nil, 0)
	var last [2]string // the two tokens before
	for {
		_, kind, text := s.Scan()
		switch kind {
		case token.EOF:
			return all
		case token.IDENT:
			if last[1] == "." {
				all[last[0]+"."+text] = true
			}
		case token.STRING:
			if value, err := strconv.Unquote(text); err == nil {
				all[value] = true
			}
		case token.PERIOD:
			text = "."
		}
		last = [2]string{last[1], text}
	}
}
