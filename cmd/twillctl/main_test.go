package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/lab"
)

func TestExitCodes(t *testing.T) {
	for want, err := range map[int]error{0: nil, 1: errFindings, 2: errors.New("it did not work"), 7: exited(7)} {
		if got := exitCode(err); got != want {
			t.Errorf("%v: exit code %d, want %d", err, got, want)
		}
	}
	if got := exitCode(fmt.Errorf("run it: %w", exec.Command("false").Run())); got != 2 {
		t.Errorf("with a program that failed: exit code %d, want 2", got)
	}
}

func TestVersion(t *testing.T) {
	for _, how := range []string{"version", "--version"} {
		if out, err := run(t, how); err != nil || out != "twillctl version "+versionText()+"\n" || !strings.HasPrefix(versionText(), version) {
			t.Errorf("%s: got %q, %v", how, out, err)
		}
	}
}

// TestTemplates: the linker drops methods that nobody calls. Templates of text/template call methods by their names, so that it
// keeps all: a fifth of the program.
func TestTemplates(t *testing.T) {
	for _, name := range []string{"twilld", "twillctl"} {
		path := filepath.Join(t.TempDir(), name)
		if out, err := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", path, "../"+name).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("can't evaluate field")) {
			t.Errorf("%s can run templates of text/template: what calls it?", name)
		}
	}
}

func TestArguments(t *testing.T) {
	for want, args := range map[string][]string{
		"1 arguments: want twillctl lab walk NODE/POD NODE/POD [flags]": {"lab", "walk", "node1/pod1"},
		"0 arguments: want twillctl lab run SCRIPT… [flags]":            {"lab", "run"},
		"0 arguments: want twillctl lab do COMMAND [ARGUMENT…] [flags]": {"lab", "do"},
		`unknown command "now" for "twillctl lab down"`:                 {"lab", "down", "now"},
	} {
		if _, err := run(t, args...); err == nil || err.Error() != want {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}

func TestBadInputIsASentence(t *testing.T) {
	for want, args := range map[string][]string{
		`--agent /no/such: want [NODE=]PATH`:                               {"lab", "up", "--agent", "/no/such"},
		`--net-conf: open /no/such`:                                        {"lab", "up", "--net-conf", "/no/such"},
		`--link-mtu node2=big: want [NODE=]BYTES`:                          {"lab", "up", "--link-mtu", "node2=big"},
		`--subnet 10.244.1.0/24: want NODE=PREFIX`:                         {"lab", "up", "--subnet", "10.244.1.0/24"},
		`--agent-flag node2=iface=eth1: want [NODE=]--FLAG=VALUE`:          {"lab", "up", "--agent-flag", "node2=iface=eth1"},
		`site of "node9": want one of [node1 node2 node3]`:                 {"lab", "up", "--name", "ctltest", "--nat", "node9"},
		`nodes -1: want 1 to 154`:                                          {"lab", "up", "--name", "ctltest", "--nodes", "-1"},
		`lab ctltest: there is no such lab: twillctl lab up makes one`:     {"lab", "status", "--name", "ctltest"},
		`name "CTL": want lower-case letters`:                              {"lab", "down", "--name", "CTL"},
		`serve ["etcd"]: want DIR`:                                         {"lab", "serve", "etcd"},
		`service/a/b: connecting to a Service sends packets: want --probe`: {"doctor", "service/a/b"},
		`--no-probe sends nothing: want it without --probe`:                {"doctor", "--probe", "--no-probe"},
		`service/a/b: one node does not know Services`:                     {"doctor", "--probe", "service/a/b"},
		`"service/c/d": want one Service`:                                  {"doctor", "--probe", "service/a/b", "service/c/d"},
		`"b": want one node at most`:                                       {"doctor", "a", "b"},
	} {
		if out, err := run(t, args...); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v: %v, want %s\n%s", args, err, want, out)
		}
	}
}

func TestShowRefusesAnotherFormat(t *testing.T) {
	c := labStatus(new(string))
	if err := show(c, lab.Report{}, "yaml"); err == nil || err.Error() != `--output "yaml": want text or json` {
		t.Errorf("got %v", err)
	}
	var out bytes.Buffer
	c.SetOut(&out)
	if err := show(c, lab.Report{Findings: []string{"a"}}, "json"); !errors.Is(err, errFindings) || !strings.Contains(out.String(), `"findings"`) {
		t.Errorf("a report with findings: %v\n%s", err, &out)
	}
}

func TestExecTakesDashesOrNone(t *testing.T) {
	for _, c := range []struct{ args, want []string }{
		{[]string{"node1", "ip", "route"}, []string{"ip", "route"}},
		{[]string{"node1", "--", "ip", "route"}, []string{"ip", "route"}},
		{[]string{"node1", "grep", "--", "-x"}, []string{"grep", "--", "-x"}},
	} {
		if got := commandOf(c.args); !slices.Equal(got, c.want) {
			t.Errorf("%q runs %q, want %q", c.args, got, c.want)
		}
	}
}

func TestSites(t *testing.T) {
	spec := lab.Spec{Nodes: 2}
	f := siteFlags{nat: []string{"node2"}, mtus: []string{"9000", "node1=1400"}, agents: []string{"--iface=eth1", "node2=--public-ip=1.2.3.4"}}
	if err := f.complete(&spec); err != nil {
		t.Fatal(err)
	}
	if one := spec.Sites["node1"]; one.MTU != 1400 || one.NAT || !slices.Equal(one.Flags, []string{"--iface=eth1"}) {
		t.Errorf("node1: %+v", one)
	}
	if two := spec.Sites["node2"]; two.MTU != 9000 || !two.NAT || len(two.Flags) != 2 {
		t.Errorf("node2: %+v", two)
	}
	spec = lab.Spec{Nodes: 2}
	if err := (&siteFlags{}).complete(&spec); err != nil || len(spec.Sites) > 0 {
		t.Errorf("without flags: %+v, %v", spec.Sites, err)
	}
}
