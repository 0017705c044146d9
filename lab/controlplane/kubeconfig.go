package controlplane

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// The format is https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
var kubeconfig = template.Must(template.New("kubeconfig").Parse(`apiVersion: v1
kind: Config
clusters:
- name: twill-lab
  cluster:
    server: {{.Server}}
    certificate-authority-data: {{.CA}}
users:
- name: user
  user:
    token: {{printf "%q" .Token}}
contexts:
- name: twill-lab
  context:
    cluster: twill-lab
    user: user
current-context: twill-lab
`))

// Kubeconfig returns a kubeconfig for the holder of the token. It holds all that a client needs, and no paths.
func (s *APIServer) Kubeconfig(token string) []byte {
	var buf bytes.Buffer
	// Writing to a buffer and printing strings cannot fail.
	_ = kubeconfig.Execute(&buf, map[string]string{
		"Server": s.URL(),
		"CA":     base64.StdEncoding.EncodeToString(s.ca.pem),
		"Token":  token,
	})
	return buf.Bytes()
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
