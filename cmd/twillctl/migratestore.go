package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/kube"
	"github.com/twill-net/twill/target"
)

// storeMigration changes where the agents of a cluster publish and read leases.
type storeMigration struct {
	cluster target.Cluster
	to      string // subnet.StoreNodes or subnet.StoreLeases
	dryRun  bool
	timeout time.Duration // of one step without progress
	out     io.Writer
}

func migrateStoreCommand() *cobra.Command {
	var m storeMigration
	c := &cobra.Command{
		Use:   "migrate-store",
		Short: "Have the agents of a cluster read leases from Lease objects, or from Nodes again",
		Long: `Migrate-store sets the key Store of the network config, first to both and then to the one that is asked for,
and restarts the agents after each. Packets of pods go on meanwhile. On the way to leases it compares the Lease objects
with the Nodes, and goes no further while a node has none, such as one of flannel. It can be interrupted and run again.
With helm, set netConf.Store afterwards, or the next upgrade takes the change back.`,
		Example: `  kubectl twill migrate-store --to leases --dry-run
  kubectl twill migrate-store --to leases
  kubectl twill migrate-store --to nodes`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			m.out = c.OutOrStdout()
			return m.run(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&m.to, "to", "", "where agents are to read leases: leases or nodes")
	f.BoolVar(&m.dryRun, "dry-run", false, "print the steps, and change nothing")
	f.DurationVar(&m.timeout, "timeout", 5*time.Minute, "how long to wait for the next agent, or for Lease objects")
	f.StringVar(&m.cluster.Context, "context", "", "kubectl's")
	f.StringVar(&m.cluster.Kubeconfig, "kubeconfig", "", "kubectl's")
	f.StringVarP(&m.cluster.Namespace, "namespace", "n", target.AgentNamespace, "the namespace of the agents' DaemonSet")
	return c
}

// run takes the steps that are left.
func (m storeMigration) run(ctx context.Context) error {
	if m.to != subnet.StoreLeases && m.to != subnet.StoreNodes {
		return fmt.Errorf("--to %q: want %s or %s", m.to, subnet.StoreLeases, subnet.StoreNodes)
	}
	conf, err := m.config(ctx)
	if err != nil {
		return err
	}
	now := cmp.Or(conf.network.Store, subnet.StoreNodes)
	steps := []string{subnet.StoreBoth, m.to}
	if now == m.to {
		steps = steps[1:]
	}
	fmt.Fprintf(m.out, "Store is %s\n", now)
	for i, store := range steps {
		fmt.Fprintf(m.out, "step %d of %d: Store %s\n", i+1, len(steps), store)
		if m.dryRun {
			m.explain(store)
			continue
		}
		if err := m.step(ctx, store); err != nil {
			return goOn(ctx, err)
		}
	}
	return nil
}

// goOn says how to go on after the user ended the command.
func goOn(ctx context.Context, err error) error {
	if target.Interrupted(ctx) {
		return errors.New("interrupted: run it again to go on, or with the other --to to go back")
	}
	return err
}

func (m storeMigration) explain(store string) {
	fmt.Fprintf(m.out, "  would write it to the ConfigMap %s/%s, and restart the agents\n", m.cluster.Namespace, configMap)
	if m.to == subnet.StoreLeases {
		fmt.Fprintln(m.out, "  would wait until all nodes have their Lease objects")
	}
}

// step writes the value, has all agents use it, and on the way to Lease objects checks what they publish. The way back
// needs none.
func (m storeMigration) step(ctx context.Context, store string) error {
	conf, err := m.config(ctx)
	if err != nil {
		return err
	}
	if conf.network.Store != store {
		if err := m.write(ctx, conf, store); err != nil {
			return err
		}
		if conf, err = m.config(ctx); err != nil {
			return err
		}
	}
	if err := m.restart(ctx, store, conf.version); err != nil || m.to == subnet.StoreNodes {
		return err
	}
	return m.await(ctx, "Lease objects", func(ctx context.Context) (string, bool, error) {
		return m.compare(ctx, conf.network)
	})
}

// await asks until there is nothing to wait for, and prints what is left whenever it is something else. It gives up
// when that stays the same for too long.
func (m storeMigration) await(
	ctx context.Context, what string, ask func(context.Context) (left string, done bool, err error),
) error {
	said, since := "", time.Now()
	for {
		left, done, err := ask(ctx)
		if err != nil {
			return err
		}
		if left != said {
			fmt.Fprintln(m.out, "  "+left)
			said, since = left, time.Now()
		}
		switch {
		case done:
			return nil
		case time.Since(since) > m.timeout:
			return fmt.Errorf("%s: %s, for %s: mend that and run it again", what, left, m.timeout)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// compare says which nodes' Lease objects are missing or differ.
func (m storeMigration) compare(ctx context.Context, network subnet.Config) (left string, done bool, err error) {
	set, err := m.agents(ctx)
	if err != nil {
		return "", false, err
	}
	nodes, err := m.cluster.Kubectl(ctx, "get", "nodes", "--output=json")
	if err != nil {
		return "", false, err
	}
	objects, err := m.cluster.Kubectl(ctx, "get", "leases.coordination.k8s.io", "--namespace="+m.cluster.Namespace,
		"--output=json")
	if err != nil {
		return "", false, err
	}
	peers, differ, err := kube.Compare(set.prefix(), network.Pools, nodes, objects)
	if err != nil {
		return "", false, err
	}
	if len(differ) == 0 {
		return fmt.Sprintf("all %d nodes have their Lease objects", peers), true, nil
	}
	const most = 10
	names := strings.Join(differ[:min(most, len(differ))], ", ")
	if len(differ) > most {
		names += fmt.Sprintf(" and %d more", len(differ)-most)
	}
	return fmt.Sprintf("%d of %d nodes have no Lease objects, or differing ones: %s", len(differ), peers, names), false, nil
}

// daemonSet is the agents', as far as it matters here.
type daemonSet struct {
	Metadata struct {
		Name       string
		Generation int64
	}
	Spec struct {
		UpdateStrategy struct{ Type string }
		Template       struct {
			Spec struct {
				Containers []struct {
					Name string
					Args []string
				}
			}
		}
	}
	Status struct {
		ObservedGeneration                                              int64
		DesiredNumberScheduled, UpdatedNumberScheduled, NumberAvailable int
	}
}

func (m storeMigration) agents(ctx context.Context) (d daemonSet, err error) {
	out, err := m.cluster.Kubectl(ctx, "get", "daemonsets.apps", "--namespace="+m.cluster.Namespace,
		"--selector="+target.AgentLabel, "--output=json")
	if err != nil {
		return d, err
	}
	var list struct{ Items []daemonSet }
	if err := json.Unmarshal(out, &list); err != nil {
		return d, fmt.Errorf("read kubectl's list of DaemonSets: %w", err)
	}
	if len(list.Items) != 1 {
		return d, fmt.Errorf("the namespace %s has %d DaemonSets with the label %s, want Twill's alone: "+
			"say with --namespace where it is installed", m.cluster.Namespace, len(list.Items), target.AgentLabel)
	}
	d = list.Items[0]
	if d.Spec.UpdateStrategy.Type == "OnDelete" {
		return d, fmt.Errorf("the DaemonSet %s has the updateStrategy OnDelete: want RollingUpdate", d.Metadata.Name)
	}
	return d, nil
}

// prefix returns the agents' --kube-annotation-prefix, empty if they have none.
func (d daemonSet) prefix() string {
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, arg := range c.Args {
			if value, ok := strings.CutPrefix(arg, "--kube-annotation-prefix="); ok && c.Name == target.AgentContainer {
				return value
			}
		}
	}
	return ""
}

// restart has all agents restarted that run with an older ConfigMap, and waits for them. An annotation of their pods
// names the ConfigMap's version, so that a second run of this command restarts nobody.
func (m storeMigration) restart(ctx context.Context, store, version string) error {
	set, err := m.agents(ctx)
	if err != nil {
		return err
	}
	const patch = `{"spec":{"template":{"metadata":{"annotations":{"twill-net.github.io/store":%q}}}}}`
	_, err = m.cluster.Kubectl(ctx, "patch", "daemonsets.apps", set.Metadata.Name, "--namespace="+m.cluster.Namespace,
		"--type=merge", "--patch="+fmt.Sprintf(patch, store+" "+version))
	if err != nil {
		return err
	}
	return m.await(ctx, "restart of the agents", func(ctx context.Context) (string, bool, error) {
		d, err := m.agents(ctx)
		all, s := d.Status.DesiredNumberScheduled, d.Status
		if err != nil || s.ObservedGeneration < d.Metadata.Generation {
			return "the agents are restarted", false, err
		}
		done := s.UpdatedNumberScheduled >= all && s.NumberAvailable >= all
		return fmt.Sprintf("%d of %d agents are restarted, %d are ready", s.UpdatedNumberScheduled, all, s.NumberAvailable),
			done, nil
	})
}
