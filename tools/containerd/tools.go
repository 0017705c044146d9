//go:build tools

// Package containerd pins the container runtime that Twill is tested with. The imports keep go.mod and go.sum
// complete for its programs; the tag keeps the file out of every build, since programs cannot be imported.
package containerd

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
