package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/lab"
)

// TestLabCompletion: what a line of a lab can go on with is offered, from the lab's state.
func TestLabCompletion(t *testing.T) {
	const name = "ctlcomplete"
	dir := filepath.Join(lab.DefaultDir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	state := `{"Nodes": [{"Name": "node1", "Pods": [{"Name": "pod1"}]}, {"Name": "worker", "Pods": [{"Name": "web"}]}]}`
	if err := os.WriteFile(filepath.Join(dir, "state.json"), []byte(state), 0o644); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"doctor --lab ctlcomp":                         "ctlcomplete ",
		"lab down --name ctlcomp":                      "ctlcomplete ",
		"doctor --lab ctlcomplete ":                    "node1 worker ",
		"trace --lab ctlcomplete ":                     "node1/pod1 worker/web ",
		"trace --lab ctlcomplete node1/pod1 ":          "node1/pod1 worker/web ",
		"lab walk --name ctlcomplete w":                "worker/web ",
		"lab exec --name ctlcomplete ":                 "node1 worker node1/pod1 worker/web outside underlay ",
		"lab exec --name ctlcomplete node1 ":           "",
		"lab capture --name ctlcomplete all.pcapng no": "node1 node1/pod1 ",
		"lab capture --name ctlcomplete ":              "",
		"lab do --name ctlcomplete partition w":        "worker worker/web ",
		"lab do link-":                                 "link-mtu ",
		"lab do fault routes-f":                        "routes-flushed ",
		"lab run arti":                                 "article-host-gw article-vxlan ",
		"lab show manual-v":                            "manual-vxlan ",
		"lab verbs link-":                              "link-mtu ",
		"lab up --backend wire":                        "wireguard ",
		"lab up --store ":                              "file etcd kube ",
		"lab up --proxy ":                              "iptables nftables ",
		"lab run --proxy nf":                           "nftables ",
		"lab do --name ctlcomplete service ":           "add remove ",
		"lab do --name ctlcomplete service add web w":  "worker worker/web ",
		"lab up --family d":                            "dual ",
		"lab up --underlay l3":                         "l3 ",
		"trace 10.244.1.2 ":                            "",
		"doctor --lab ctltestnone ":                    "",
	} {
		out, err := run(t, append([]string{"__complete"}, strings.Split(line, " ")...)...)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		got, begun := "", line[strings.LastIndex(line, " ")+1:]
		for entry := range strings.Lines(out) {
			word, _, _ := strings.Cut(strings.TrimSpace(entry), "\t")
			if strings.HasPrefix(word, ":") {
				break // what the shell is to do about files
			}
			if strings.HasPrefix(word, begun) { // the shell leaves out the others
				got += word + " "
			}
		}
		if got != want {
			t.Errorf("%q goes on with %q, want %q", line, got, want)
		}
	}
}
