package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"github.com/twill-net/twill/internal/controlplane"
)

const (
	apiPort   = 6443
	agentUser = "system:serviceaccount:kube-flannel:twill"
)

// object is one of Kubernetes' as JSON.
type object = map[string]any

// kubeStore is a real kube-apiserver, in a process on the router. No controller runs, so the lab makes the Node
// objects and gives them their podCIDRs.
type kubeStore struct{ lab *Lab }

func (s *kubeStore) dir() string { return filepath.Join(s.lab.dir, "apiserver") }

func (s *kubeStore) start(ctx context.Context) error {
	binary, err := controlplane.FindBinary("kube-apiserver")
	if err != nil {
		return err
	}
	if err := s.lab.runEtcd(ctx); err != nil {
		return err
	}
	ready := filepath.Join(s.dir(), readyFile)
	if err := os.Remove(ready); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	command := append(
		slices.Clone(s.lab.spec.Programs.Server),
		s.dir(),
		binary,
		s.lab.routerAddr().String(),
		s.lab.etcdURL(),
	)
	return s.lab.runServer(ctx, apiServer, s.dir(), command, func(context.Context) error {
		_, err := os.Stat(ready)
		return err
	})
}

func (s *kubeStore) flags(*Node) []string {
	return []string{
		"--kube-subnet-mgr",
		"--kubeconfig-file=" + kubeconfigFile(s.dir()),
		"--net-config-path=" + s.lab.netConfFile(),
	}
}

// register makes the Node object, as a kubelet and the controller manager would.
func (s *kubeStore) register(ctx context.Context, n *Node) error {
	cidrs, err := s.lab.spec.podCIDRs(n.Number)
	if err != nil {
		return fmt.Errorf("find the podCIDR of %s: %w", n.Name, err)
	}
	if kept := n.site().Subnets; len(kept) > 0 {
		cidrs = kept
	}
	var addresses []object
	for _, a := range n.Underlay() {
		addresses = append(addresses, object{"type": "InternalIP", "address": a.String()})
	}
	body, err := json.Marshal(object{
		"apiVersion": "v1", "kind": "Node",
		// kubelet's own annotation; flannel panics on a node that has none at all.
		"metadata": object{
			"name":        n.Name,
			"annotations": object{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		"spec":   object{"podCIDR": cidrs[0], "podCIDRs": cidrs},
		"status": object{"addresses": addresses},
	})
	if err != nil {
		return err
	}
	return s.call(ctx, http.MethodPost, "/api/v1/nodes", body, http.StatusConflict)
}

func (s *kubeStore) forget(ctx context.Context, n *Node) error {
	return s.call(ctx, http.MethodDelete, "/api/v1/nodes/"+n.Name, nil, http.StatusNotFound)
}

// call makes a request as the administrator; the status fine is as good as success.
func (s *kubeStore) call(ctx context.Context, method, path string, body []byte, fine int) error {
	_, err := s.ask(ctx, method, path, body, fine)
	return err
}

// maxAnswer bounds what the API server may answer.
const maxAnswer = 64 << 20

// ask is call, and returns the answer.
func (s *kubeStore) ask(ctx context.Context, method, path string, body []byte, fine int) ([]byte, error) {
	api, err := controlplane.OpenAPIServer(s.dir())
	if err != nil {
		return nil, err
	}
	transport := api.Transport(s.lab.underlay.Dial)
	transport.DisableKeepAlives = true // its connections are the router's, and would keep that namespace
	client := http.Client{Transport: transport}
	req, err := http.NewRequestWithContext(ctx, method, api.URL()+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+api.Token(controlplane.Admin))
	req.Header.Set("Content-Type", contentType(method))
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the API server: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode/100 != 2 && resp.StatusCode != fine {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, message(answer))
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	return answer, nil
}

// message is what the API server says of an error, or the beginning of another answer.
func message(answer []byte) string {
	var status struct{ Message string }
	if json.Unmarshal(answer, &status) == nil && status.Message != "" {
		return status.Message
	}
	return string(answer[:min(1000, len(answer))])
}

// API makes a request of the lab's API server as its administrator, and returns the answer. A body is JSON.
func (l *Lab) API(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	s, err := l.kube()
	if err != nil {
		return nil, err
	}
	return s.ask(ctx, method, path, body, http.StatusOK)
}

func (l *Lab) kube() (*kubeStore, error) {
	s, ok := l.store.(*kubeStore)
	if !ok {
		return nil, fmt.Errorf("lab %s has no API server, its store is %s: bring one up with --store %s, for which "+
			"`make lab STORE=%[3]s` builds the programs", l.spec.Name, l.spec.Store, Kube)
	}
	return s, nil
}

// Kubeconfig returns the administrator's kubeconfig, with the API server's address on the underlay; empty if the lab
// has no API server.
func (l *Lab) Kubeconfig() string {
	s, ok := l.store.(*kubeStore)
	if !ok {
		return ""
	}
	api, err := controlplane.OpenAPIServer(s.dir())
	if err != nil {
		return ""
	}
	return api.KubeconfigFile(controlplane.Admin)
}

// contentType is JSON, or for a patch the kind that changes only what it names.
func contentType(method string) string {
	if method == http.MethodPatch {
		return "application/merge-patch+json"
	}
	return "application/json"
}
