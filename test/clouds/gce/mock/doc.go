// Package mock has clouds/gce keep routes in the mock of the package by which Kubernetes' cloud provider does. Compiling that
// takes minutes, because it has three versions of the whole compute API: so its test needs the tag gcemock.
package mock
