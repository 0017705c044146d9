package script_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testall"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/examples"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/lab/script"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// TestScripts runs every script that comes with Twill.
func TestScripts(t *testing.T) {
	names, err := examples.Names()
	if err != nil || len(names) < 10 {
		t.Fatalf("%d scripts: %v", len(names), err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			data, err := examples.Read(name)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(data, []byte("-store kube")) {
				testall.Needs(t, "a built kube-apiserver")
			}
			if !bytes.Contains(data, []byte("-proxy ")) {
				runs(t, runner(), name, data)
				return
			}
			for _, mode := range lab.Modes {
				t.Run(mode, func(t *testing.T) {
					r := runner()
					r.Proxy = mode
					runs(t, r, name, data)
				})
			}
		})
	}
}

func runs(t *testing.T, r script.Runner, name string, data []byte) {
	t.Helper()
	r.Patience = testwait.Limit
	if err := r.Run(t.Context(), name, data, t.Output()); err != nil {
		t.Fatal(err)
	}
}

// TestTitles: the list of scripts has a line for each, which fits.
func TestTitles(t *testing.T) {
	names, err := examples.Names()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		data, err := examples.Read(name)
		if title := script.Title(data); err != nil || len(title) < 20 || len(title) > 120 || !strings.HasPrefix(string(data), "# ") {
			t.Errorf("%s: %q, %v: want a first line that begins with # and says what the script shows", name, title, err)
		}
	}
	if _, err := examples.Read("none"); err == nil {
		t.Error("there is a script none")
	}
}

// TestVocabulary: every command is explained.
func TestVocabulary(t *testing.T) {
	var text strings.Builder
	if err := script.Vocabulary(&text); err != nil {
		t.Fatal(err)
	}
	for _, name := range script.Names() {
		if !strings.Contains(text.String(), name) {
			t.Errorf("the command %s is not explained in the vocabulary", name)
		}
	}
}

func runner() script.Runner {
	spec := labtest.Spec(lab.Spec{})
	return script.Runner{Programs: spec.Programs, Dir: spec.Dir, Prefix: "t", Brief: true, FastPath: spec.FastPath}
}

// TestScriptsFail proves that each assert can fail, and says why in a sentence.
func TestScriptsFail(t *testing.T) {
	for name, want := range map[string]string{
		"ping node1 node2":       "there is no lab yet",
		"up -nodes 0x":           "want [-nodes N]",
		"up -nodes 200":          "nodes 200: want 1 to 154",
		"up -subnet 10.0.0.0/24": `"10.0.0.0/24": want NODE=VALUE`,
		"within 1x plan all":     "unknown unit",
		"within 1s exec true":    `"exec" cannot be repeated`,
		"keep A b":               `no match for "b"`,
		"fault nothing":          "there is no lab yet",
		"agent pause node1":      `agent "pause": want start, stop, kill or restart`,
		"lost a b c 0":           `there is no stream "a"`,
		"losses 0":               "begin with the command traffic",
		"losses x":               `losses "x": want a number of pings`,
		"join -nodes x":          "want [-nodes N] [-subnet PREFIX]",
		"store stall":            "there is no lab yet",
		"arp steal a b c d":      `arp "steal": want request or reply`,
		"capture a b exec true":  `"exec" cannot be captured`,
		"up -proxy ipvs":         `proxy "ipvs": want iptables, nftables`,
		"up -proxy nftables":     "kube-proxy follows the Services of an API server: want the store kube, not file",
		"service add web":        "there is no lab yet",
		"connect a service/web":  "there is no lab yet",
		"connect a b":            "connect b: want a PORT, or service/NAME",
		"traffic":                "there is no lab yet",
		"rollout":                "there is no lab yet",
		"ping":                   "0 arguments: want [-6] [-size BYTES]",
	} {
		var log bytes.Buffer
		err := runner().Run(t.Context(), "fails", []byte(name+"\n"), &log)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s\n%s", name, err, want, &log)
		}
	}
}

// TestOneRunAtATime: a second run of a script would remove the first one's lab.
func TestOneRunAtATime(t *testing.T) {
	began := filepath.Join(t.TempDir(), "began")
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		ended <- runner().Run(ctx, "twice", []byte("exec touch "+began+"\nsleep 1m\n"), io.Discard)
	}()
	testwait.Nil(t, "the first run begins", func() error {
		_, err := os.Stat(began)
		return err
	})
	err := runner().Run(t.Context(), "twice", []byte("echo two\n"), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "another program runs") {
		t.Errorf("the second run: %v", err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first run, which was stopped: %v", err)
	}
	if err := runner().Run(t.Context(), "twice", []byte("echo three\n"), io.Discard); err != nil {
		t.Errorf("the third run: %v", err)
	}
}

// TestAssertsFail proves on a lab that what a script says must hold.
func TestAssertsFail(t *testing.T) {
	up := "up\nreach\n"
	for name, want := range map[string]string{
		up + "path-mtu node1/pod1 node2/pod1 1400":                             "1401 bytes from node1/pod1",
		up + "path-mtu node1/pod1 node2/pod1 1451":                             "packet is larger than the MTU",
		up + "agent kill node1\non node1 ip route del $node2_subnet\nplan all": "node1 is not as it should be:\n+ route",
		up + "doctor node1 fdb-missing":                                        "the doctor finds nothing on node1: want fdb-missing",
		up + "agent kill node1\ndoctor node1":                                  "agent-down on node1: want nothing",
		up + "agent kill node1\nfault fdb-deleted\nwalk node1/pod1 node2/pod1": "did not arrive: no reply",
		up + "tcp node1/pod1 node9":                                            `"node9": want an address, a node, NODE/POD or outside`,
		up + "within 100ms ! ping node1/pod1 node2/pod1":                       "it is still so after 100ms",
		up + "arp request node1 eth1 fd00::1 $node2":                           `sender "fd00::1": want an IPv4 address`,
		up + "arp request node1 eth9 $node1 $node2":                            "find the device eth9",
		up + "service add web node1/pod1":                                      "has no API server, its store is file: bring one up with --store kube",
		up + "connect node1/pod1 service/web":                                  "has no API server",
		up + "capture node1 eth9 ping node1 node2":                             "eth9 on node1",
		up + "up":                           "the lab is up already",
		up + "fault nothing":                `there is no fault "nothing": want one of route-deleted`,
		up + "! ping node1/pod1 node2/pod1": "unexpected success",
		up + "partition node1 node2\nreach": "no reply",
		up + "traffic\npartition node1 node2\nsleep 200ms\nlosses 3":                       "pings of one pod to another are lost: want 3 at most",
		up + "traffic\nrollout -net-conf none.json":                                        "none.json: no such file",
		up + "traffic\npartition node1 node2\nsleep 200ms\nlosses 3 node1/pod1 node2/pod1": "want 3 at most",
		up + "traffic\nlosses 0 node1/pod1":                                                "name pods that it has found",
		up + "traffic\nlosses -6 0":                                                        "nothing is sent",
		up + "join -subnet none":                                                           `join -subnet "none": want a subnet`,
		up + "join -nodes 0":                                                               "join -nodes 0: want 1 or more",
		up + "join -nodes 200":                                                             "node202: the underlay has addresses for 154 nodes",
		up + "store stall":                                                                 "the store file has no servers: bring the lab up with the store etcd or kube",
		up + "store pause":                                                                 `store "pause": want stop, start, stall or resume`,
		up + "agent kill node1\nagent start node9 &\nwait":                                 `there is no node "node9"`,
		up + "stream a node1/pod1 node2/pod1\nmark a 1\npartition node1 node2\nsleep 200ms\nmark a 2\nlost a 1 2 3": "want 3 at most",
	} {
		t.Run(strings.ReplaceAll(strings.TrimPrefix(name, up), "\n", ";"), func(t *testing.T) {
			var log bytes.Buffer
			err := runner().Run(t.Context(), "asserts", []byte(name+"\n"), &log)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s\n%s", err, want, &log)
			}
		})
	}
}

// TestDoFiles: a command's files are those of the working directory, or wherever an absolute path leads.
func TestDoFiles(t *testing.T) {
	l := labtest.Up(t, lab.Spec{Name: "tdofiles", Nodes: 1, Pods: 1, Store: lab.File, NetworkPolicy: true})
	t.Chdir(t.TempDir())
	const manifest = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n"
	for _, path := range []string{"near.yaml", filepath.Join(t.TempDir(), "far.yaml")} {
		err := os.WriteFile(path, []byte(manifest), 0o600)
		if err == nil {
			err = script.Do(t.Context(), l, io.Discard, "policy", "apply", path)
		}
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
