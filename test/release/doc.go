// Package release makes a release of the working tree for one architecture, and lets real programs judge it: skopeo, helm,
// sha256sum, openssl, and containerd in test/cluster/e2e. `make test-release` runs it.
package release
