//go:build !vm

package e2e

// kernelPaths are those that not every kernel has.
var kernelPaths []path
