//go:build !vm

package e2e

import "time"

// pingInterval is the time between two pings of a stream.
const pingInterval = 10 * time.Millisecond

// emulated reports whether this is the machine of "make test-vm".
const emulated = false

// kernelPaths are those that not every kernel has.
var kernelPaths []path
