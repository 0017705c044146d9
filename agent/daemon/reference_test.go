package daemon

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/reference"
)

const flagsHead = `# Flags of twilld

One dash or two are the same. Each flag can also be set in the environment as ` + "`TWILLD_NAME` or `FLANNELD_NAME`" + `
(upper case, _ for -); the command line takes precedence. [Configuration](../configuration.md#flags-of-twilld) explains
the flags that need more than a line.

`

// flannelFlags are those of flanneld (v0.28). All others are Twill's own.
var flannelFlags = strings.Fields(`etcd-cafile etcd-certfile etcd-endpoints etcd-keyfile etcd-password etcd-prefix etcd-username
	healthz-ip healthz-port iface iface-can-reach iface-regex ip-blackhole-route ip-masq ip-masq-fully-random-disable
	iptables-forward-rules kube-annotation-prefix kube-api-url kube-subnet-mgr kubeconfig-file net-config-path public-ip public-ipv6
	set-node-network-unavailable subnet-file subnet-lease-renew-margin v version`)

// flagRows returns the tables of the page: flannel's flags, Twill's own, and those without effect.
func flagRows() string {
	fs := flag.NewFlagSet("twilld", flag.ContinueOnError)
	new(options).register(fs)
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
		case slices.Contains(flannelFlags, f.Name):
			flannels += row
		default:
			twills += row
		}
	})
	return "## Flannel's flags\n\n" + flannels + "\n## Twill's own flags\n\n" + twills +
		"\n## Flags without effect\n\nThese are flannel's too. They are accepted, and the log says that they do nothing.\n\n" + ignored
}

// TestFlagsReference makes the page of twilld's flags.
func TestFlagsReference(t *testing.T) {
	rows := flagRows()
	for _, name := range flannelFlags {
		if !strings.Contains(rows, "| `--"+name+"` |") {
			t.Errorf("twilld has no flag --%s: flannelFlags is wrong", name)
		}
	}
	reference.Write(t, "flags.md", flagsHead+rows)
}
