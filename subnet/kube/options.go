package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/twill-net/twill/internal/certs"
	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/subnet"
)

// DefaultPrefix is the prefix of flannel's annotations.
const DefaultPrefix = "flannel.alpha.coreos.com"

// Options tell how to reach the API server, and which node this is.
type Options struct {
	Kubeconfig string // path; with no APIURL either: the pod's service account
	APIURL     string // instead of the server that Kubeconfig names
	NoCommands bool   // refuse a Kubeconfig that runs a command to prove who calls

	// Node returns the name of this node's object. Empty: the environment's NODE_NAME, or else spec.nodeName of the
	// pod that POD_NAME and POD_NAMESPACE name.
	Node string

	AnnotationPrefix string        // empty: DefaultPrefix; with or without a slash, as flannel takes it
	Pools            []subnet.Pool // of the network config; of a lease only their address families are read

	// Networks may have this node's podCIDRs too, beside those of the Pools.
	Networks []netip.Prefix
	// ExternalIP publishes the Node's address of type ExternalIP, unless an annotation names another one.
	ExternalIP bool

	// ClaimNamespace lets the store lease by itself, from the Pools, for a node to which nobody assigns a podCIDR: it
	// claims subnets by Lease objects in this namespace and writes them to the node's spec. Empty: it waits for one.
	ClaimNamespace string

	// Store is one of the subnet.Store… values; empty: StoreNodes. LeaseNamespace is where Lease objects are published,
	// unless ClaimNamespace says it.
	Store, LeaseNamespace string

	// SetNetworkUnavailable lets Network write the node's condition NetworkUnavailable.
	SetNetworkUnavailable bool
	// SetPeersReached lets Reached write the node's condition TwillPeersReached. Otherwise one that is there is removed.
	SetPeersReached bool

	// Waiting, if set, is called when a task of the store is held up: once for each new reason, and with a nil error
	// when it succeeds again. Tasks are "find the node's name", "acquire the lease", "watch nodes", "read nodes",
	// "watch Lease objects", "take leases from Lease objects", "publish the lease", "publish Lease objects",
	// "set NetworkUnavailable", "set TwillPeersReached", "compare what the API server says of this node" and "record an
	// event". Calls come from several goroutines, one at a time, and must return quickly.
	Waiting func(task string, err error)
}

var (
	_ subnet.Store        = (*Store)(nil)
	_ subnet.Reporter     = (*Store)(nil)
	_ subnet.Checkpointer = (*Store)(nil)
	_ subnet.Disputed     = (*Store)(nil)
	_ subnet.Excluder     = (*Store)(nil)
	_ subnet.Locator      = (*Store)(nil)
	_ subnet.Redialer     = (*Store)(nil)
)

// Store keeps leases in Node objects.
type Store struct {
	api         *client
	annotations annotations
	pools       []subnet.Pool
	networks    []netip.Prefix // that may have this node's podCIDRs, beside the pools'
	progress    kubeclient.Progress
	podCIDRs    podCIDRs
	relistEvery time.Duration // at least; all Nodes are listed again although every watch could be resumed
	lookAtAPI   time.Duration // at average; the API server is asked whether it contradicts itself

	node          string
	disputed      func(subnet.Lease)
	setsCondition bool
	setsReached   bool
	refused       time.Time // when the API server last did not let the agent set TwillPeersReached; of keep alone
	claimSpace    string
	mode          string // one of the subnet.Store… values
	leaseSpace    string // where Lease objects are published; empty: nowhere
	patience      patience

	own    own
	events *events
	subnet.Exclusions
}

// New connects to nothing yet, unless the name of the node has to be read from a pod: then it retries until ctx
// is done.
func New(ctx context.Context, o Options) (*Store, error) {
	if len(o.Pools) == 0 {
		return nil, errors.New("kube store without a pool: the network config must have a Network or IPv6Network")
	}
	if o.Store != "" && o.Store != subnet.StoreNodes && o.ClaimNamespace+o.LeaseNamespace == "" {
		return nil, fmt.Errorf("kube store with Store %q: it needs the namespace of the Lease objects", o.Store)
	}
	prefix, err := fullPrefix(cmp.Or(o.AnnotationPrefix, DefaultPrefix))
	if err != nil {
		return nil, err
	}
	shared, err := kubeclient.Open(kubeclient.Server{Kubeconfig: o.Kubeconfig, URL: o.APIURL, NoCommands: o.NoCommands})
	if err != nil {
		return nil, err
	}
	api, err := newClient(shared)
	if err != nil {
		return nil, err
	}
	s := &Store{
		api: api, annotations: newAnnotations(prefix, o.Pools), pools: o.Pools, networks: o.Networks,
		progress:    kubeclient.Progress{Waiting: o.Waiting},
		relistEvery: time.Hour, lookAtAPI: lookAtAPI, setsCondition: o.SetNetworkUnavailable, setsReached: o.SetPeersReached, claimSpace: o.ClaimNamespace,
		mode: cmp.Or(o.Store, subnet.StoreNodes), patience: usualPatience,
		own: own{changed: make(chan struct{}, 1), conditions: map[string]condition{}}, events: newEvents(),
	}
	s.annotations.external = o.ExternalIP
	if !o.SetPeersReached {
		s.own.conditions[peersReached] = condition{}
	}
	if s.mode != subnet.StoreNodes {
		s.leaseSpace = cmp.Or(o.ClaimNamespace, o.LeaseNamespace)
	}
	if s.node, err = s.nodeName(ctx, o.Node); err != nil {
		return nil, err
	}
	return s, nil
}

// Redial implements subnet.Redialer.
func (s *Store) Redial() { s.api.Redial() }

// Leases implements subnet.Lessor.
func (s *Store) Leases() bool { return s.claimSpace != "" }

// Certificates returns those of the kubeconfig.
func (s *Store) Certificates() ([]certs.Certificate, error) { return s.api.Certificates() }

// Client returns what the store makes its calls with, for others that call the same API server.
func (s *Store) Client() *kubeclient.Client { return s.api.Client }

// Node returns the name of this node's object.
func (s *Store) Node() string { return s.node }

func (s *Store) nodeName(ctx context.Context, given string) (string, error) {
	if name := cmp.Or(given, os.Getenv("NODE_NAME")); name != "" {
		return name, nil
	}
	namespace, name := os.Getenv("POD_NAMESPACE"), os.Getenv("POD_NAME")
	if namespace == "" || name == "" {
		return "", errors.New("no node name: set NODE_NAME, or POD_NAME and POD_NAMESPACE, in the environment")
	}
	var node string
	err := s.retry(ctx, taskName, func() (err error) {
		node, err = s.api.podNode(ctx, namespace, name)
		return err
	})
	return node, err
}
