//go:build tools

// Package flannel pins the flannel that migrations are tested from. The import keeps go.mod and go.sum complete for
// it; the tag keeps the file out of every build, since programs cannot be imported.
package flannel

import _ "github.com/flannel-io/flannel"
