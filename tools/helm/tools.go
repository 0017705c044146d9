//go:build tools

// Package helm pins the helm that renders the chart in tests. The import keeps go.mod and go.sum complete for it; the
// tag keeps the file out of every build, since programs cannot be imported.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
