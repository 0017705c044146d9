package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/subnet"
)

// TestChooseBackend: a backend that cannot work here leaves the checkpoint's in place, with all else of the new config.
func TestChooseBackend(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // without charon
	log, o := slog.New(slog.DiscardHandler), &options{checkpointFile: filepath.Join(t.TempDir(), "checkpoint.json")}
	network, err := subnet.ParseConfig([]byte(`{"Network": "10.244.0.0/16", "SubnetLen": 26, "Backend": {"Type": "ipsec", "PSK": "` +
		strings.Repeat("x", 96) + `"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := chooseBackend(network, o, log); err == nil {
		t.Errorf("without a checkpoint: %+v", b)
	}
	const saved = `{"Version": 1, "Node": "node1", "Network": {"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw", "SpreadMetrics": true}}, "Kept": [{"Type": "vxlan"}]}`
	if err := os.WriteFile(o.checkpointFile, []byte(saved), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := chooseBackend(network, o, log)
	now := b.network
	if err != nil || b.backend == nil || now.Backend != "host-gw" || !strings.Contains(string(now.Options), "SpreadMetrics") || now.Pools[0].SubnetLen != 26 {
		t.Errorf("got %+v, error %v", b, err)
	}
	const want = "the backend ipsec cannot work on this node, which stays with host-gw: the backend ipsec needs strongSwan's charon"
	if b.refused == nil || !strings.HasPrefix(b.refused.Error(), want) || !strings.Contains(b.refused.Error(), "bring back the network config of before") {
		t.Errorf("got %v, want %s", b.refused, want)
	}
	if tr, ok := b.backend.(backend.Transition); !ok || !slices.Equal(tr.Types(), []string{"host-gw", "vxlan"}) {
		t.Errorf("by vxlan, too, peers reach the node, and it has %T", b.backend)
	}
	if again, err := subnet.ParseConfig(now.Raw); err != nil || again.Backend != "host-gw" {
		t.Errorf("the config for the next checkpoint is %s, error %v", now.Raw, err)
	}
}
