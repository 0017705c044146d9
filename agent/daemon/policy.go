package daemon

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/conntrack"
	"github.com/twill-net/twill/netstate/filter"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/netstate/nflog"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/announce"
	"github.com/twill-net/twill/policy/announce/message"
	"github.com/twill-net/twill/policy/enforce"
	"github.com/twill-net/twill/policy/file"
	"github.com/twill-net/twill/policy/kube"
	"github.com/twill-net/twill/subnet"
)

// policyOptions are the flags about network policies. Flannel has none of them.
type policyOptions struct {
	mode    policyMode
	cluster bool
	log     bool
	file    string
	budget  policy.Budget
}

func (o *policyOptions) register(fs *flag.FlagSet) {
	fs.Var(&o.mode, "network-policy", "enforce the cluster's NetworkPolicies for this node's pods, with nftables: true, false, or "+
		"audit (count what they deny, and let it pass)")
	fs.BoolVar(&o.cluster, "cluster-network-policy", false,
		"with --network-policy: enforce ClusterNetworkPolicies (policy.networking.k8s.io/v1alpha2), too")
	fs.BoolVar(&o.log, "network-policy-log", false,
		"with --network-policy: log packets that policies deny, a few of each kind")
	fs.StringVar(&o.file, "network-policy-file", "",
		"with --network-policy: a file, or a directory, of manifests with the policies, namespaces and pods; "+
			"empty: the Kubernetes API's")
	fs.IntVar(&o.budget.Namespace, "network-policy-budget", policy.DefaultBudget.Namespace,
		"with --network-policy: rules and sets' elements that this node has for the NetworkPolicies of a namespace, and for each "+
			"ClusterNetworkPolicy; pods that a NetworkPolicy beyond it selects are closed")
	fs.IntVar(&o.budget.Node, "network-policy-node-budget", policy.DefaultBudget.Node,
		"with --network-policy: rules and sets' elements that this node has for the NetworkPolicies of all namespaces")
}

// policyMode is what is done with network policies. It is a flag.Value.
type policyMode uint8

// The choices.
const (
	policiesOff policyMode = iota
	policiesOn
	policiesAudit // what they deny is counted, and passes
)

func (m policyMode) String() string { return [...]string{"false", "true", "audit"}[m] }

// IsBoolFlag lets the flag stand without a value, which means true.
func (policyMode) IsBoolFlag() bool { return true }

// Set reads a boolean, or "audit".
func (m *policyMode) Set(s string) error {
	on, err := strconv.ParseBool(s)
	switch {
	case s == "audit":
		*m = policiesAudit
	case err != nil:
		return errors.New("want true, false or audit")
	case on:
		*m = policiesOn
	default:
		*m = policiesOff
	}
	return nil
}

// settings are what others are told of the flags.
func (o *policyOptions) settings() agent.PolicySettings {
	return agent.PolicySettings{Enforce: o.mode == policiesOn, Audit: o.mode == policiesAudit, Cluster: o.cluster, File: o.file}
}

// checkPolicy returns an error if the flags about network policies do not fit the others.
func (o *options) checkPolicy() error {
	switch {
	case o.policy.mode == policiesOff && o.policy.file != "":
		return errors.New("--network-policy-file has no effect without --network-policy: give both or neither")
	case o.policy.mode == policiesOff && o.policy.cluster:
		return errors.New("--cluster-network-policy has no effect without --network-policy: give both or neither")
	case o.policy.mode == policiesOff && o.policy.log:
		return errors.New("--network-policy-log has no effect without --network-policy: give both or neither")
	case o.policy.mode == policiesOff:
		return nil
	case o.policy.budget.Namespace < 1 || o.policy.budget.Node < o.policy.budget.Namespace:
		return fmt.Errorf("--network-policy-budget is %d and --network-policy-node-budget is %d, want numbers from 1 on, of which "+
			"the second is not the smaller one", o.policy.budget.Namespace, o.policy.budget.Node)
	case o.bridge == "":
		return errors.New("--network-policy needs a --bridge: the rules are about the packets of its ports")
	case o.policy.file == "" && !o.kubeSubnetMgr:
		return errors.New("--network-policy needs --kube-subnet-mgr, or a --network-policy-file with the policies")
	}
	return nil
}

// bridgeFilter is there while the kernel has br_netfilter.
const bridgeFilter = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// servePolicies starts what enforces network policies, and makes the agent wait for it.
func servePolicies(ctx context.Context, group *errgroup.Group, o *options, p *parts) error {
	if o.policy.mode == policiesOff {
		return removePolicies(ctx, o, p.config.Log)
	}
	if _, err := os.Stat(bridgeFilter); err != nil {
		return fmt.Errorf("--network-policy needs the kernel's br_netfilter, which is not there (%w): load the module "+
			"br_netfilter on this node", err)
	}
	if err := cmp.Or(filter.CheckFrames(), filter.CheckReset()); err != nil {
		return fmt.Errorf("--network-policy: %w", err)
	}
	source, err := openPolicies(o, p.config.Log)
	if err != nil {
		return err
	}
	tables, err := filter.New()
	if err != nil {
		return fmt.Errorf("--network-policy: %w", err)
	}
	ports, err := kernel.OpenPodPorts()
	if err != nil {
		tables.Close()
		return fmt.Errorf("--network-policy: %w", err)
	}
	announced, denials := announce.NewSource(source, p.config.Node), openDenials(o, p.config.Log)
	tracked, err := conntrack.Open()
	if err != nil {
		tables.Close()
		ports.Close()
		return fmt.Errorf("--network-policy: %w", err)
	}
	var connections enforce.Connections
	if p.config.Shortcuts.On { // packets of open ones may take the fast path
		connections = tracked
	}
	counters, err := filter.New() // of its own: metrics are asked for at any time
	if err != nil {
		tables.Close()
		ports.Close()
		tracked.Close()
		return fmt.Errorf("--network-policy: %w", err)
	}
	e := enforce.New(enforce.Config{Node: p.config.Node, Bridge: o.bridge, Source: announced, Kernel: tables, Ports: ports,
		Connections: connections, Forget: tracked.Forget, Networks: networks(p.config.Network), Log: p.config.Log,
		Metrics: enforce.NewMetrics(p.metrics), Counters: counters, Logs: denials != nil, Audit: o.policy.mode == policiesAudit, Event: events(p.config.Store),
		ObjectEvent: objectEvents(p.config.Store), Budget: &o.policy.budget})
	p.metrics.MustRegister(e.Collector())
	p.config.Policies = e
	if o.policy.mode == policiesAudit {
		p.config.Log.Info("network policies are audited: what they deny is counted, and passes")
	}
	serveAnnouncements(ctx, group, o, &announce.Server{Pods: announced, Subnets: e.Subnets, Flush: e.Flush, Log: p.config.Log})
	if denials != nil {
		group.Go(func() error { return e.LogDenied(ctx, denials) })
	}
	group.Go(func() error {
		defer tables.Close()
		defer counters.Close()
		defer ports.Close()
		defer tracked.Close()
		return e.Run(ctx)
	})
	return nil
}

// networks returns what the cluster's pods get addresses from.
func networks(cfg subnet.Config) (all []netip.Prefix) {
	for _, pool := range cfg.Pools {
		all = append(all, pool.Network)
	}
	return all
}

// openDenials opens what rules tell of packets that they drop, if that is asked for. Where the kernel cannot do it, policies
// are enforced without.
func openDenials(o *options, log *slog.Logger) *nflog.Log {
	if !o.policy.log {
		return nil
	}
	err := filter.CheckLog()
	if err == nil {
		var l *nflog.Log
		if l, err = nflog.Open(netstate.LogGroup); err == nil {
			return l
		}
	}
	log.Error("--network-policy-log: policies are enforced, and what they deny is not logged", "err", err)
	return nil
}

// openPolicies returns where the policies come from.
func openPolicies(o *options, log *slog.Logger) (policy.Source, error) {
	waiting := func(task string, err error) { logWaiting(log, task, err) }
	if o.policy.file != "" {
		s := file.New(o.policy.file, func(err error) { waiting("network policies", err) })
		s.Cluster = o.policy.cluster
		return s, nil
	}
	api, err := kubeclient.Open(kubeclient.Server{Kubeconfig: o.kubeconfig, URL: o.kubeAPIURL})
	if err != nil {
		return nil, err
	}
	s, err := kube.New(api, waiting)
	if err != nil {
		return nil, err
	}
	s.Cluster = o.policy.cluster
	return s, nil
}

// serveAnnouncements starts what the CNI plugin tells of pods. Without it they have no network until the source of the
// policies knows their addresses.
func serveAnnouncements(ctx context.Context, group *errgroup.Group, o *options, s *announce.Server) {
	l, err := announce.Listen(ctx, message.Socket(o.subnetFile))
	if err != nil {
		s.Log.Error("new pods have no network until the API server has their addresses", "err", err)
		return
	}
	group.Go(func() error { return s.Serve(ctx, l) })
}

// removePolicies deletes what an agent with --network-policy left: without one that follows them, policies would stay as
// they were, and new pods have no network.
func removePolicies(ctx context.Context, o *options, log *slog.Logger) error {
	if err := os.Remove(message.Socket(o.subnetFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket for the CNI plugin: %w", err)
	}
	plan, err := deletePolicies(ctx)
	if len(plan) > 0 {
		log.Info("network policies are not enforced any more", "objects", len(plan))
	}
	return err
}

// deletePolicies deletes the tables, if there are any.
func deletePolicies(ctx context.Context) (netstate.Plan, error) {
	tables, err := filter.New()
	if err != nil {
		return nil, nil //nolint:nilerr // a kernel without nf_tables has none
	}
	defer tables.Close()
	have, err := tables.Observe(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("read the tables of network policies: %w", err)
	}
	plan := netstate.Diff(nil, have)
	if err := tables.Apply(ctx, plan); err != nil {
		return nil, fmt.Errorf("delete the tables of network policies: %w", err)
	}
	return plan, nil
}
