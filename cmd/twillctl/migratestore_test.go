package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/kube"
	"github.com/twill-net/twill/target"
)

// storeCluster is a genuine API server with the manifest, and a goroutine that does what the DaemonSet's controller and
// the agents do: they publish their leases when they are restarted.
type storeCluster struct {
	*testing.T
	kubeconfig string

	mu       sync.Mutex
	restarts int
}

func startStoreCluster(t *testing.T) *storeCluster {
	t.Helper()
	kubectl := controlplanetest.Binary(t, "kubectl")
	t.Setenv("PATH", filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
	c := &storeCluster{T: t, kubeconfig: controlplanetest.Start(t, controlplane.APIServerConfig{}).KubeconfigFile(controlplane.Admin)}
	c.must("", "apply", "--filename=../../Documentation/twill.yml")
	for i := range 3 {
		c.must(fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n%d"},"spec":{"podCIDR":"10.244.%d.0/24","podCIDRs":["10.244.%d.0/24"]}}`,
			i, i, i), "create", "--filename=-")
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { c.play(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })
	return c
}

func (c *storeCluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "kubectl", append(args, "--kubeconfig="+c.kubeconfig)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(bytes.TrimSpace(out)), err
}

func (c *storeCluster) must(stdin string, args ...string) string {
	c.Helper()
	out, err := c.kubectl(c.Context(), stdin, args...)
	if err != nil {
		c.Fatalf("kubectl %q: %v, %s", args, err, out)
	}
	return out
}

// conf is the network config of the cluster.
func (c *storeCluster) conf(ctx context.Context) (subnet.Config, error) {
	text, err := c.kubectl(ctx, "", "--namespace=kube-twill", "get", "configmap", "twill", `--output=jsonpath={.data.net-conf\.json}`)
	if err != nil {
		return subnet.Config{}, err
	}
	return subnet.ParseConfig([]byte(text))
}

func (c *storeCluster) play(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for last := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := c.kubectl(ctx, "", "--namespace=kube-twill", "get", "daemonset", "twill", "--output=jsonpath={.metadata.generation}")
		if err != nil || now == last {
			continue
		}
		if err := c.restart(ctx, now); err != nil && ctx.Err() == nil {
			c.Error(err)
			return
		}
		last = now
	}
}

func (c *storeCluster) restart(ctx context.Context, generation string) error {
	conf, err := c.conf(ctx)
	if err != nil {
		return err
	}
	for i := range 3 {
		node := fmt.Sprint("n", i)
		store, err := kube.New(ctx, kube.Options{Kubeconfig: c.kubeconfig, Node: node, Pools: conf.Pools, Store: conf.Store, LeaseNamespace: target.AgentNamespace})
		if err == nil {
			_, err = store.Acquire(ctx, subnet.Lease{Node: node, Backend: conf.Backend, Stacks: []subnet.Stack{
				{Underlay: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), Data: json.RawMessage(`{"VNI":1}`)}}})
		}
		if err != nil {
			return err
		}
		status := fmt.Sprintf(`{"status":{"observedGeneration":%s,"currentNumberScheduled":3,"numberMisscheduled":0,"numberReady":3,`+
			`"desiredNumberScheduled":3,"updatedNumberScheduled":%d,"numberAvailable":3}}`, generation, i+1)
		if out, err := c.kubectl(ctx, "", "--namespace=kube-twill", "patch", "daemonset", "twill", "--subresource=status", "--type=merge", "--patch="+status); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restarts++
	return nil
}

func (c *storeCluster) migrate(args ...string) (string, error) {
	c.Helper()
	return run(c.T, append([]string{"migrate-store", "--kubeconfig=" + c.kubeconfig}, args...)...)
}

func (c *storeCluster) wantStore(want string) {
	c.Helper()
	conf, err := c.conf(c.Context())
	if err != nil || conf.Store != want || conf.Pools[0].Network.String() != "10.244.0.0/16" {
		c.Errorf("the network config is %s, %v; want Store %q", conf.Raw, err, want)
	}
}

// TestMigrateStore goes to Lease objects and back, with a node of flannel in the way, and runs steps twice.
func TestMigrateStore(t *testing.T) {
	c := startStoreCluster(t)
	out, err := c.migrate("--to=leases", "--dry-run")
	if err != nil || !strings.Contains(out, "step 2 of 2: Store leases") || !strings.Contains(out, "would write it to the ConfigMap kube-twill/twill") {
		t.Errorf("a dry run: %v\n%s", err, out)
	}
	c.wantStore("")
	flannel := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"flannel","annotations":{"flannel.alpha.coreos.com/kube-subnet-manager":"true",` +
		`"flannel.alpha.coreos.com/backend-type":"vxlan","flannel.alpha.coreos.com/public-ip":"192.0.2.9"}},"spec":{"podCIDR":"10.244.9.0/24","podCIDRs":["10.244.9.0/24"]}}`
	c.must(flannel, "create", "--filename=-")
	out, err = c.migrate("--to=leases", "--timeout=10s") // in which an agent is restarted on a busy machine too
	if err == nil || !strings.Contains(err.Error(), "1 of 4 nodes have no Lease objects, or differing ones: flannel, for 10s") || !strings.Contains(out, "3 of 3 agents are restarted") {
		t.Errorf("with a node of flannel: %v\n%s", err, out)
	}
	c.wantStore("both")
	c.must("", "delete", "node", "flannel")
	out, err = c.migrate("--to=leases")
	if err != nil || strings.Count(out, "all 3 nodes have their Lease objects") != 2 {
		t.Errorf("without it: %v\n%s", err, out)
	}
	c.wantStore("leases")
	if out, err = c.migrate("--to=leases"); err != nil || !strings.Contains(out, "step 1 of 1: Store leases") {
		t.Errorf("a second time: %v\n%s", err, out)
	}
	c.must(flannel, "create", "--filename=-") // which may be why somebody goes back
	if out, err = c.migrate("--to=nodes", "--timeout="+testwait.Limit.String()); err != nil || strings.Contains(out, "Lease objects") {
		t.Errorf("back: %v\n%s", err, out)
	}
	c.wantStore("nodes")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.restarts != 5 { // at first, and to both, leases, both and nodes
		t.Errorf("the agents were restarted %d times, want 5", c.restarts)
	}
}

// TestAwait: it gives up when nothing has changed for the timeout, and not before, however long all of it takes.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		m, began := storeMigration{timeout: 10 * time.Second, out: &out}, time.Now()
		err := m.await(t.Context(), "agents", func(context.Context) (string, bool, error) {
			return fmt.Sprintf("%d of 3", min(int(time.Since(began)/(9*time.Second)), 3)), false, nil
		})
		if want := "agents: 3 of 3, for 10s: mend that and run it again"; err == nil || err.Error() != want {
			t.Errorf("it ends with %v, want %s", err, want)
		}
		if took := time.Since(began); took < 37*time.Second || took > 39*time.Second {
			t.Errorf("it gives up after %s", took)
		}
		if want := "  0 of 3\n  1 of 3\n  2 of 3\n  3 of 3\n"; out.String() != want {
			t.Errorf("it prints %q, want %q", out.String(), want)
		}
	})
}

// TestMigrateStoreRefuses: what it cannot do is one sentence.
func TestMigrateStoreRefuses(t *testing.T) {
	if _, err := run(t, "migrate-store", "--to=etcd"); err == nil || err.Error() != `--to "etcd": want leases or nodes` {
		t.Errorf("got %v", err)
	}
}

// TestWithStore: the key is written into a network config, and all else stays as it is.
func TestWithStore(t *testing.T) {
	for from, want := range map[string]string{
		"{\n  \"Network\": \"10.0.0.0/16\"\n}":                                 "{\n  \"Store\": \"both\",\n  \"Network\": \"10.0.0.0/16\"\n}",
		`{"Network":"10.0.0.0/16","store" : "nodes"}`:                          `{"Network":"10.0.0.0/16","store" : "both"}`,
		`{"Store":null,"Network":"10.0.0.0/16"}`:                               `{"Store":"both","Network":"10.0.0.0/16"}`,
		`{"Network":"10.0.0.0/16","Backend":{"Type":"vxlan","Store":"mine"}}`:  "",
		`{"Network":"10.0.0.0/16","Backend":{"Type":"vxlan","x":"\"Store\""}}`: `{"Store": "both","Network":"10.0.0.0/16","Backend":{"Type":"vxlan","x":"\"Store\""}}`,
	} {
		network, err := subnet.ParseConfig([]byte(from))
		if err != nil {
			t.Fatal(err)
		}
		got, err := withStore(storeConfig{text: from, network: network}, "both")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v; want %q", from, got, err, want)
		}
	}
}
