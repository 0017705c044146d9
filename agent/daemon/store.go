package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/internal/smallfile"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/etcd"
	"github.com/twill-net/twill/subnet/file"
	"github.com/twill-net/twill/subnet/kube"
)

// storeTimeout is how long a start waits for the store if the checkpoint can replace it.
const storeTimeout = 3 * time.Second

// store is the Store that the flags choose.
type store struct {
	subnet.Store
	node string
	kube *kube.Store // nil for the other kinds
}

// server returns what tells where the API server was reached last, nil without one.
func (s store) server() func() netip.AddrPort {
	if s.kube == nil {
		return nil
	}
	return s.kube.Client().Server
}

// farewell is how long the end waits until the cluster knows of it.
const farewell = 3 * time.Second

// sayEnd tells the cluster why the agent ends, where it has a cluster that lets it.
func (s store) sayEnd(err error) {
	if s.kube == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	s.kube.Event("Warning", "AgentEnds", err.Error())
	s.kube.Flush(ctx)
}

// openStore opens the store and reads the network config.
func openStore(ctx context.Context, o *options, log *slog.Logger) (store, subnet.Config, error) {
	switch {
	case o.kubeSubnetMgr && o.leaseFile != "":
		return store{}, subnet.Config{}, errors.New("--kube-subnet-mgr and --lease-file are two stores: give one")
	case o.kubeSubnetMgr:
		return openKube(ctx, o, log)
	case o.leaseFile != "":
		return openFile(o)
	}
	return openEtcd(ctx, o, log)
}

func openKube(ctx context.Context, o *options, log *slog.Logger) (store, subnet.Config, error) {
	network, err := configFile(o.netConfigs)
	if err != nil {
		return store{}, network, err
	}
	s, err := kube.New(ctx, kube.Options{
		Kubeconfig: o.kubeconfig, APIURL: o.kubeAPIURL, Node: o.nodeName, AnnotationPrefix: o.kubeAnnotationPrefix,
		ClaimNamespace: o.kubeLeaseNamespace, Networks: o.clusters, ExternalIP: o.externalIP,
		Store: network.Store, LeaseNamespace: kubeclient.Namespace(), Pools: network.Pools, SetNetworkUnavailable: o.setNodeNetworkUnavailable, SetPeersReached: o.reachPeers > 0,
		Waiting: func(task string, err error) { logWaiting(log, task, err) },
	})
	if err != nil {
		return store{}, network, err
	}
	return store{Store: s, node: s.Node(), kube: s}, network, nil
}

// refuseStore returns an error if the network config says where leases are in Kubernetes, and they are elsewhere.
func refuseStore(network subnet.Config) error {
	if network.Store == "" {
		return nil
	}
	return fmt.Errorf("the network config's key Store (%q) is for leases in the Kubernetes API: "+
		"remove it, or start the agent with --kube-subnet-mgr", network.Store)
}

// logWaiting logs what the store waits for, and that it need not wait any more.
func logWaiting(log *slog.Logger, task string, err error) {
	if err == nil {
		log.Info("the store continues", "task", task)
		return
	}
	log.Warn("the store has to wait, it tries again", "task", task, "err", err)
}

func openFile(o *options) (store, subnet.Config, error) {
	network, err := configFile(o.netConfigs)
	if err != nil {
		return store{}, network, err
	}
	if err := refuseStore(network); err != nil {
		return store{}, network, err
	}
	node, err := o.node()
	return store{Store: file.New(o.leaseFile, network.Pools), node: node}, network, err
}

// configFile reads net-conf.json.
func configFile(path string) (subnet.Config, error) {
	raw, err := smallfile.Read(path, smallfile.MB)
	if errors.Is(err, fs.ErrNotExist) {
		return subnet.Config{}, fmt.Errorf("no network config at %s: "+
			"write a net-conf.json there, or name another file with --net-config-path", path)
	}
	if err != nil {
		return subnet.Config{}, err
	}
	network, err := subnet.ParseConfig(raw)
	if err != nil {
		return network, fmt.Errorf("network config %s: %w", path, err)
	}
	return network, nil
}

// hints returns what the cluster knows of this node's addresses, or while the API server does not
// answer, what the checkpoint says. It does not ask if the flags say which interface to use.
func (s store) hints(ctx context.Context, o *options) (kube.Hints, error) {
	if s.kube == nil || len(o.iface)+len(o.ifaceRegex) > 0 || o.ifaceCanReach != "" {
		return kube.Hints{}, nil
	}
	saved, _ := agent.ReadCheckpoint(o.checkpointFile) // without one there are no addresses
	if last := saved.Underlays(); len(last) > 0 {
		limited, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		if hints, err := s.kube.Hints(limited); err == nil {
			return hints, nil
		}
		return kube.Hints{Internal: last}, nil
	}
	return s.kube.Hints(ctx)
}

func openEtcd(ctx context.Context, o *options, log *slog.Logger) (store, subnet.Config, error) {
	margin, err := o.renew()
	if err != nil {
		return store{}, subnet.Config{}, err
	}
	node, err := o.node()
	if err != nil {
		return store{}, subnet.Config{}, err
	}
	opts := etcd.Options{Endpoints: strings.Split(o.etcdEndpoints, ","), Prefix: o.etcdPrefix, KeyFile: o.etcdKeyfile,
		CertFile: o.etcdCertfile, CAFile: o.etcdCAFile, Username: o.etcdUsername, Password: o.etcdPassword,
		RenewMargin: margin, Report: func(err error) { logWaiting(log, "etcd", err) }}
	network, err := etcdConfig(ctx, opts, o.checkpointFile, log)
	if err != nil {
		return store{}, network, err
	}
	if err := refuseStore(network); err != nil {
		return store{}, network, err
	}
	opts.Pools = network.Pools
	s, err := etcd.New(opts)
	return store{Store: s, node: node}, network, err
}

// etcdConfig reads the network config, and waits for it. If etcd does not answer, it uses the checkpoint's.
func etcdConfig(ctx context.Context, opts etcd.Options, checkpoint string, log *slog.Logger) (subnet.Config, error) {
	s, err := etcd.New(opts)
	if err != nil {
		return subnet.Config{}, err
	}
	defer s.Close()
	saved, _ := agent.ReadCheckpoint(checkpoint) // without one there is no config
	logged := ""
	for begun := time.Now(); ; {
		network, err := s.Config(ctx)
		switch {
		case err == nil || !etcd.IsOutage(err) || ctx.Err() != nil:
			return network, err
		case len(saved.Network) > 0 && time.Since(begun) > storeTimeout:
			return subnet.ParseConfig(saved.Network)
		case err.Error() != logged:
			logged = err.Error()
			log.Warn("waiting for the network config", "err", err)
		}
		loop.Sleep(ctx, storeTimeout/3)
	}
}
