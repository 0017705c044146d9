package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
)

// errNotKube is what the edits of Node objects say where there are none.
var errNotKube = errors.New("the lab's store has no Node objects: bring it up with the store kube")

// storeGrace is how long a server of the lab may take to end.
const storeGrace = 10 * time.Second

// StopStore ends the store's servers; the agents are on their own until StartStore.
func (l *Lab) StopStore(ctx context.Context) error {
	var api, etcd host.Process
	l.view(func(s *state) { api, etcd = s.Servers[apiServer], s.Servers[etcdServer] })
	// At SIGTERM etcd would wait seven seconds for its clients' watches.
	return errors.Join(api.Stop(ctx, storeGrace), etcd.Kill())
}

// StartStore starts the store's servers again, with the data that they had.
func (l *Lab) StartStore(ctx context.Context) error { return l.store.start(ctx) }

// StallStore has the store's servers stand still until ResumeStore: connections stay, and nothing is answered.
func (l *Lab) StallStore() error { return l.signalServers(unix.SIGSTOP) }

// ResumeStore ends what StallStore began.
func (l *Lab) ResumeStore() error { return l.signalServers(unix.SIGCONT) }

func (l *Lab) signalServers(sig unix.Signal) error {
	var servers []host.Process
	l.view(func(s *state) { servers = slices.Collect(maps.Values(s.Servers)) })
	if len(servers) == 0 {
		return fmt.Errorf("the store %s has no servers: bring the lab up with the store %s or %s", l.spec.Store, Etcd, Kube)
	}
	var errs []error
	for _, p := range servers {
		errs = append(errs, p.Signal(sig))
	}
	return errors.Join(errs...)
}

// Etcd returns the client URL of the lab's etcd, which is reached from the router, and the prefix of the
// cluster's keys.
func (l *Lab) Etcd() (url, prefix string) { return l.etcdURL(), etcdPrefix }

// Router returns the host that all nodes are plugged into, where the store's servers are.
func (l *Lab) Router() host.Host { return l.underlay }

// Hijack makes another node, which does not exist, claim the subnets of the target at an underlay address.
func (l *Lab) Hijack(ctx context.Context, name string, target *Node, at netip.Addr) error {
	kube, ok := l.store.(*kubeStore)
	if !ok {
		return errNotKube
	}
	cidrs, err := l.spec.podCIDRs(target.Number)
	if err != nil {
		return fmt.Errorf("find the podCIDR of %s: %w", target.Name, err)
	}
	const prefix = "flannel.alpha.coreos.com/"
	body, err := json.Marshal(object{
		"apiVersion": "v1", "kind": "Node",
		"metadata": object{"name": name, "annotations": object{
			prefix + "kube-subnet-manager": "true",
			prefix + "backend-type":        l.spec.Backend,
			prefix + "backend-data":        `{"VNI":1,"VtepMAC":"0e:00:00:00:00:99"}`,
			prefix + "public-ip":           at.String(),
		}},
		"spec": object{"podCIDR": cidrs[0], "podCIDRs": cidrs},
	})
	if err != nil {
		return err
	}
	return kube.call(ctx, http.MethodPost, "/api/v1/nodes", body, http.StatusConflict)
}

// Annotate sets annotations of a node's object, as an administrator would; an empty value deletes one.
func (l *Lab) Annotate(ctx context.Context, node string, annotations map[string]string) error {
	kube, ok := l.store.(*kubeStore)
	if !ok {
		return errNotKube
	}
	values := map[string]any{}
	for key, value := range annotations {
		values[key] = value
		if value == "" {
			values[key] = nil
		}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": values}})
	if err != nil {
		return err
	}
	return kube.call(ctx, http.MethodPatch, "/api/v1/nodes/"+node, body, 0)
}

// DeleteNode deletes a node's object, whether a node of the lab or not.
func (l *Lab) DeleteNode(ctx context.Context, name string) error {
	kube, ok := l.store.(*kubeStore)
	if !ok {
		return errNotKube
	}
	return kube.call(ctx, http.MethodDelete, "/api/v1/nodes/"+name, nil, http.StatusNotFound)
}
