package kubeclient

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/twill-net/twill/internal/smallfile"
)

// ErrCommand is the error for a kubeconfig that runs a command, with NoCommands.
var ErrCommand = errors.New("it runs a command (exec or auth-provider) to prove who calls")

// Namespace returns the namespace of the pod that this is: the environment's POD_NAMESPACE, or its service account's.
// Outside of a pod it is the manifest's.
func Namespace() string {
	if name := os.Getenv("POD_NAMESPACE"); name != "" {
		return name
	}
	name, err := smallfile.Read("/var/run/secrets/kubernetes.io/serviceaccount/namespace", smallfile.MB)
	if err != nil || len(name) == 0 {
		return "kube-twill"
	}
	return strings.TrimSpace(string(name))
}

// Server tells where the API server is.
type Server struct {
	Kubeconfig string // path; with no URL either: the pod's service account
	URL        string // instead of the server that Kubeconfig names
	NoCommands bool   // refuse a Kubeconfig that runs a command to prove who calls
}

// Config reads the configuration of a client.
func (s Server) Config() (*rest.Config, error) {
	if s.Kubeconfig == "" && s.URL == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf(
				"read the pod's service account (outside of a pod, say --kubeconfig-file or --kube-api-url): %w", err)
		}
		return cfg, nil
	}
	overrides := &clientcmd.ConfigOverrides{}
	overrides.ClusterInfo.Server = s.URL
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: s.Kubeconfig}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %q: %w", s.Kubeconfig, err)
	}
	if s.NoCommands && (cfg.ExecProvider != nil || cfg.AuthProvider != nil) {
		return nil, fmt.Errorf("kubeconfig %q: %w", s.Kubeconfig, ErrCommand)
	}
	return cfg, nil
}
