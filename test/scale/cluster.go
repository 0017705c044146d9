// Package scale measures one agent in a large cluster: a real API server with thousands of Node objects as large as
// real ones, and the real agent binary in a network namespace of its own, whose kernel is watched. Peers exist in the
// API only: what they cost an agent is what it reads of them and what it writes into the kernel for them.
package scale

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/controlplane"
)

// agentUser is whom the agents say to be; it has the rights of the manifest and no more.
const agentUser = "system:serviceaccount:kube-flannel:flannel"

// Cluster is an API server that holds virtual nodes.
type Cluster struct {
	dir    string
	dual   bool
	etcd   *controlplane.Etcd
	server *controlplane.APIServer
	api    *typed.CoreV1Client
	leases coordination.LeaseInterface // nil: nodes have no Lease objects

	renewals coordination.LeaseInterface // by which kubelets say that they are alive
}

// NewCluster starts etcd and kube-apiserver, whose files are in dir, without any node. dual gives all nodes two address
// families, and leases has them publish Lease objects, too. Close ends it.
func NewCluster(ctx context.Context, dir string, dual, leases bool) (*Cluster, error) {
	etcd, err := controlplane.StartEtcd(ctx, filepath.Join(dir, "etcd"), "")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, dual: dual, etcd: etcd}
	c.server, err = controlplane.StartAPIServer(ctx, c.serverConfig())
	if err != nil {
		etcd.Close()
		return nil, err
	}
	config := &rest.Config{
		Host:            c.server.URL(),
		BearerToken:     c.server.Token(controlplane.Admin),
		QPS:             -1,
		UserAgent:       "kubelet",
		TLSClientConfig: rest.TLSClientConfig{CAData: c.server.CA()},
		ContentConfig:   rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf},
	}
	if c.api, err = typed.NewForConfig(config); err == nil {
		err = c.server.ApplyAgentRBAC(ctx, agentUser)
	}
	if err == nil {
		err = c.openRenewals(ctx, config)
	}
	if err == nil && leases {
		err = c.openLeases(ctx, config)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// serverConfig is the API server's. The agents' user has the groups of a service account, by which flow control chooses
// the level of its requests.
func (c *Cluster) serverConfig() controlplane.APIServerConfig {
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:kube-flannel"}
	return controlplane.APIServerConfig{Dir: filepath.Join(c.dir, "kube"), EtcdEndpoints: c.etcd.Endpoints(),
		Users: []controlplane.User{{Name: agentUser, Groups: groups}}}
}

// Restart kills kube-apiserver, calls down while there is none, and starts it again at the same address.
func (c *Cluster) Restart(ctx context.Context, down func()) error {
	if err := unix.Kill(c.server.Pid(), unix.SIGKILL); err != nil {
		return err
	}
	if err := c.server.Close(); err != nil {
		return err
	}
	down()
	config := c.serverConfig()
	var err error
	if config.Listen, err = netip.ParseAddrPort(strings.TrimPrefix(c.server.URL(), "https://")); err != nil {
		return err
	}
	server, err := controlplane.StartAPIServer(ctx, config)
	if err == nil {
		c.server = server
	}
	return err
}

// Close ends the servers.
func (c *Cluster) Close() error {
	err := c.server.Close()
	c.etcd.Close()
	return err
}

// Setting is what an agent's network config says beside the networks.
type Setting struct {
	Store         string // empty: the Nodes
	SpreadMetrics bool   // routes to peers have metrics of their own
}

// netConf is the network config that an agent reads.
func (c *Cluster) netConf(s Setting) ([]byte, error) {
	backend := map[string]any{"Type": "vxlan"}
	if s.SpreadMetrics {
		backend["SpreadMetrics"] = true
	}
	conf := map[string]any{"Network": Network, "Backend": backend}
	if c.dual {
		conf["EnableIPv6"], conf["IPv6Network"] = true, NetworkV6
	}
	if s.Store != "" {
		conf["Store"] = s.Store
	}
	return json.Marshal(conf)
}

// quantile is the value below which the fraction q of the samples lies.
func quantile[T ~int64 | ~float64](samples []T, q float64) T {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
