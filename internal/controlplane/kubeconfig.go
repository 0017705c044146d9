package controlplane

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The format is https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
const kubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: twill-lab
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: user
  user:
    token: %q
contexts:
- name: twill-lab
  context:
    cluster: twill-lab
    user: user
current-context: twill-lab
`

// Kubeconfig returns a kubeconfig for the holder of the token. It holds all that a client needs, and no paths.
func (s *APIServer) Kubeconfig(token string) []byte {
	return fmt.Appendf(nil, kubeconfig, s.URL(), base64.StdEncoding.EncodeToString(s.ca.pem), token)
}

// KubeconfigFile returns the path of a user's kubeconfig, which stands in the server's directory from its start
// on. Only the owner can read it.
func (s *APIServer) KubeconfigFile(user string) string {
	return filepath.Join(s.dir, strings.ReplaceAll(user, ":", "-")+".kubeconfig")
}

func (s *APIServer) writeKubeconfigs() error {
	for name, u := range s.users {
		if err := os.WriteFile(s.KubeconfigFile(name), s.Kubeconfig(u.Token), 0o600); err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
	}
	return nil
}
