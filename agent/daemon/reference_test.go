package daemon

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/reference"
)

const flagsHead = `# Flags of twilld

One dash or two are the same. Each flag can also be set in the environment as ` + "`TWILLD_NAME` or `FLANNELD_NAME`" + `
(upper case, _ for -); the command line takes precedence. [Configuration](../configuration.md#flags-of-twilld) explains
the flags that need more than a line.

`

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

// TestFlagsReference makes the page of twilld's flags.
func TestFlagsReference(t *testing.T) {
	rows := flagRows()
	for _, name := range ownFlags {
		if !strings.Contains(rows, "| `--"+name+"` |") {
			t.Errorf("twilld has no flag --%s: ownFlags is wrong", name)
		}
	}
	reference.Write(t, "flags.md", flagsHead+rows)
}
