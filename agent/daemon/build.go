package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/agent/checksum"
	"github.com/twill-net/twill/agent/masquerade"
	"github.com/twill-net/twill/agent/pods"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/cloudroute"
	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/internal/steps"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/firewall"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/netstate/wireguard"
	"github.com/twill-net/twill/netstate/xfrm"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/kube"
)

// needNetAdmin returns early the error that every netlink call would return later.
func needNetAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read this process's capabilities: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return errors.New("the capability NET_ADMIN is missing: " +
			"run twilld as root, or in a container with NET_ADMIN and NET_RAW")
	}
	return nil
}

// parts are what an agent is made of, and how to close them.
type parts struct {
	store   store
	netConf []byte // as it was read
	config  agent.Config
	metrics *prometheus.Registry
	close   func()
}

// build makes the parts from the flags and the network config. It writes nothing. With an error the parts have the store, if
// it could be opened.
func build(ctx context.Context, o *options, log *slog.Logger, begun *steps.Table) (*parts, error) {
	settings, err := o.settings()
	if err != nil {
		return &parts{}, err
	}
	end := begun.BeginStore("reads the network config, and asks the store for it")
	store, network, err := openStore(ctx, o, log)
	end()
	if err != nil {
		return &parts{}, err
	}
	defer begun.BeginStore("asks the store for this node's addresses, and looks at the kernel")()
	p, err := assemble(ctx, o, log, settings, store, network)
	p.store, p.netConf, p.config.Steps = store, network.Raw, begun
	return p, err
}

// assemble makes the parts around a store. A backend that cannot work on this node leaves that of the checkpoint in place.
func assemble(ctx context.Context, o *options, log *slog.Logger, settings agent.Settings, store store, network subnet.Config) (*parts, error) {
	masq, err := openMasquerade(o, settings.Firewall, network.Pools, log, events(store.Store))
	if err != nil {
		return &parts{}, err
	}
	hints, err := store.hints(ctx, o)
	if err != nil {
		return &parts{}, err
	}
	b, err := chooseBackend(network, o, log)
	if err != nil {
		return &parts{}, err
	}
	mode, why, err := firewall.Pick(network.NFTables)
	if err != nil {
		return &parts{}, err
	}
	log.Debug("firewall", "mode", mode.String(), "reason", why)
	extras, err := openExtras(b.backend)
	if err != nil {
		return &parts{}, err
	}
	shortcuts, fast := openFastPath(o, b.backend, &extras)
	k, err := kernel.New(backend.Left(b.backend, network.Pools), extras.parts...)
	if err != nil {
		return &parts{}, err
	}
	f := firewall.New()
	chains := agent.Rules(f)
	if !o.dryRun {
		chains = agent.Aside(f)
	}
	rules := settings.Firewall
	rules.Mode, rules.Random = mode, rules.Random && f.RandomFully(mode)
	registry := prometheus.NewRegistry()
	registerFastPath(registry, fast)
	return &parts{
		config: agent.Config{
			Planner: agent.Planner{
				Node: store.node, Network: b.network, Backend: b.backend, Choice: withHints(settings.Choice, hints),
				WireGuard: extras.wireguard, Firewall: rules, Shortcuts: shortcuts,
				Base: backend.BaseConfig{Bridge: o.bridge, Blackhole: o.blackhole, Filter: o.policy.settings().On()}},
			Store: store.Store, Kernel: agent.Join(k, chains), Machine: k, Settings: settings,
			Log: log, Live: pods.Live(settings.Reservations, o.bridge), Metrics: agentMetrics(registry, o.program.version),
			Masquerade: masq, ProbeChecksum: checksum.Probe, FastPath: fast, Refused: b.refused,
			Resolved: kernel.Resolved, APIServer: store.server(),
		},
		metrics: registry,
		close:   func() { f.Close(); k.Close(); extras.close() },
	}, nil
}

// openMasquerade checks the networks that flags name for the firewall, and reads the file with more, if there is one.
func openMasquerade(o *options, rules backend.FirewallConfig, pools []subnet.Pool, log *slog.Logger,
	event func(kind, reason, message string)) (*masquerade.File, error) {
	if err := rules.Check(pools); err != nil {
		return nil, fmt.Errorf("--no-masquerade-cidr and --cluster-cidr: %w", err)
	}
	if o.masqFile == "" {
		return nil, nil
	}
	f, err := masquerade.Open(o.masqFile, func(exempt []netip.Prefix) error {
		all := rules
		all.Exempt = slices.Concat(rules.Exempt, exempt)
		return all.Check(pools)
	}, log, event)
	if err != nil {
		return nil, fmt.Errorf("--ip-masq-agent-config: %w", err)
	}
	return f, nil
}

// chosen is the backend that the agent runs, and the network config that names it.
type chosen struct {
	backend backend.Backend
	network subnet.Config
	refused error // why it is not the one that was asked for
}

// chooseBackend returns the backend of the network config, or the checkpoint's if there is one and the config's cannot work
// on this node.
func chooseBackend(network subnet.Config, o *options, log *slog.Logger) (chosen, error) {
	saved, unread := agent.ReadCheckpoint(o.checkpointFile)
	if unread == nil {
		network.Kept = keptBackends(saved)
	}
	b, err := newBackend(network, o, log)
	if err != nil {
		return chosen{}, err
	}
	refused := cannotWork(b, network)
	if refused == nil {
		return chosen{backend: b, network: network}, nil
	}
	earlier, ok := earlierNetwork(network, saved)
	if unread != nil || !ok {
		if _, needs := b.(backend.Requirer); needs {
			return chosen{}, refused
		}
		return chosen{backend: b, network: network}, nil // the agent says what is missing as often as it tries
	}
	refused = fmt.Errorf("the backend %s cannot work on this node, which stays with %s: %w; "+
		"restart twilld when that is mended, or bring back the network config of before", network.Backend, earlier.Backend, refused)
	b, err = newBackend(earlier, o, log)
	return chosen{b, earlier, refused}, err
}

// cannotWork returns what a backend needs and this node has not, nil if it has all. It makes nothing.
func cannotWork(b backend.Backend, network subnet.Config) error {
	if r, ok := b.(backend.Requirer); ok {
		if err := r.Require(); err != nil {
			return err
		}
	}
	for _, d := range backend.Devices(b, network.Pools, secretsOf(b) != nil && wireguard.Has()) {
		if err := kernel.CanMake(d); err != nil {
			return err
		}
	}
	return nil
}

// secretsOf returns the keys of a backend that is wireguard, or has it as a part; nil: none.
func secretsOf(b backend.Backend) wireguard.Secrets {
	for _, part := range backend.Parts(b) {
		if s, ok := part.(wireguard.Secrets); ok {
			return s
		}
	}
	return nil
}

// earlierNetwork returns the network config with the backend that the checkpoint has, false if there is no other one.
func earlierNetwork(network subnet.Config, saved agent.Saved) (subnet.Config, bool) {
	before, err := subnet.ParseConfig(saved.Network)
	if err != nil || before.Backend == network.Backend {
		return network, false
	}
	before, err = network.WithBackend(before)
	before.Kept = network.Kept
	return before, err == nil
}

// keptBackends returns the key Backend of the network configs that the checkpoint has, by whose backends peers may reach this node.
func keptBackends(saved agent.Saved) []json.RawMessage {
	before, err := subnet.ParseConfig(saved.Network)
	if err != nil {
		return saved.Kept
	}
	return append([]json.RawMessage{before.Options}, saved.Kept...)
}

// newBackend makes the backend of the network config, and logs the config's warnings.
func newBackend(network subnet.Config, o *options, log *slog.Logger) (backend.Backend, error) {
	b, warnings, err := registry.NewKept(network, o.clusters...)
	if err != nil {
		return nil, err
	}
	if c, ok := b.(*cloudroute.Backend); ok {
		c.Provide(o.program.clouds)
	}
	for _, w := range append(network.Warnings, warnings...) {
		log.Warn("network config", "reason", w)
	}
	return b, nil
}

// withHints adds what the cluster knows of the node. Its annotation beats the flag.
func withHints(c agent.Choice, hints kube.Hints) agent.Choice {
	c.NodeIPs = hints.Addrs()
	c.Public = slices.DeleteFunc(slices.Clone(c.Public), func(a netip.Addr) bool {
		same := func(b netip.Addr) bool { return netstate.FamilyOf(b) == netstate.FamilyOf(a) }
		return slices.ContainsFunc(hints.Choose, same)
	})
	return c
}

// extras are the parts of the kernel that not every kernel has.
type extras struct {
	parts     []kernel.Provider
	wireguard bool
	closers   []func()
}

func (e *extras) close() {
	for _, c := range e.closers {
		c()
	}
}

// openExtras opens the kernel's IPsec policies if it has IPsec, whatever the backend is: another
// backend may have left some, and they block packets. It opens WireGuard if the backend uses it and
// the kernel has it.
func openExtras(b backend.Backend) (e extras, err error) {
	p, err := xfrm.Open()
	switch {
	case err == nil:
		e.parts, e.closers = append(e.parts, p), append(e.closers, p.Close)
	case !errors.Is(err, xfrm.ErrMissing):
		return e, err
	}
	secrets := secretsOf(b)
	if secrets == nil {
		return e, nil
	}
	w, err := wireguard.Open(secrets)
	switch {
	case err == nil:
		e.parts, e.wireguard, e.closers = append(e.parts, w), true, append(e.closers, func() { _ = w.Close() })
	case !errors.Is(err, wireguard.ErrMissing):
		e.close()
		return e, err
	}
	return e, nil
}

// agentMetrics registers the agent's metrics, and its version.
func agentMetrics(registry prometheus.Registerer, version string) *agent.Metrics {
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "twill_build_info", Help: "1; the version is a label.",
		ConstLabels: prometheus.Labels{"version": version},
	}, func() float64 { return 1 }))
	return agent.NewMetrics(registry)
}
