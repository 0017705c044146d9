package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

const flagsPage = "../../Documentation/flags.md"

// ownFlags are those that flanneld does not have.
var ownFlags = strings.Fields(`bridge checkpoint-file cleanup cluster-cidr cni-bin-dir cni-bin-replace cni-conf-file
	cni-conf-source bpffs dry-run fast-path flannel-external-ip install-cni ip-masq-agent-config keep-node-source kube-lease-namespace
	lease-file load-fast-path log-format network-policy cluster-network-policy network-policy-file network-policy-log
	network-policy-budget network-policy-node-budget no-masquerade-cidr node-name
	reservations-dir reservations-grace`)

// flagRows returns the tables of the page: flannel's flags, Twill's own, and those without effect.
func flagRows() string {
	fs := flag.NewFlagSet("twilld", flag.ContinueOnError)
	new(options).register(fs)
	own := map[string]bool{}
	for _, name := range ownFlags {
		own[name] = true
	}
	const head = "| flag | default | meaning |\n|---|---|---|\n"
	flannels, twills := head, head
	ignored := "| flag | why |\n|---|---|\n"
	fs.VisitAll(func(f *flag.Flag) {
		value := " "
		if f.DefValue != "" {
			value = " `" + f.DefValue + "` "
		}
		usage := strings.ReplaceAll(f.Usage, "|", `\|`)
		row := fmt.Sprintf("| `--%s` |%s| %s |\n", f.Name, value, usage)
		switch why, none := strings.CutPrefix(usage, "accepted for flannel, no effect: "); {
		case none:
			ignored += fmt.Sprintf("| `--%s` | %s |\n", f.Name, why)
		case own[f.Name]:
			twills += row
		default:
			flannels += row
		}
	})
	return "## Flannel's flags\n\n" + flannels + "\n## Twill's own flags\n\n" + twills +
		"\n## Flags without effect\n\nThese are flannel's too. They are accepted, and the log says that they do nothing.\n\n" + ignored
}

// TestFlagsPage: the page lists what twilld registers. TWILL_WRITE=1 writes it.
func TestFlagsPage(t *testing.T) {
	const marker = "<!-- flags -->\n"
	data, err := os.ReadFile(flagsPage)
	if err != nil {
		t.Fatal(err)
	}
	head, have, _ := strings.Cut(string(data), marker)
	want := flagRows()
	for _, name := range ownFlags {
		if !strings.Contains(want, "| `--"+name+"` |") {
			t.Errorf("twilld has no flag --%s: ownFlags is wrong", name)
		}
	}
	if os.Getenv("TWILL_WRITE") != "" {
		have = want
		if err := os.WriteFile(flagsPage, []byte(head+marker+want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have != want {
		t.Errorf("%s does not end with twilld's flags: make reference", flagsPage)
	}
}
