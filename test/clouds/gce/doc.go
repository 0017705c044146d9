// Package gce has others judge clouds/gce and the front of cloud/fake: Google's description of the compute API, gcloud, and the
// mock of Kubernetes' cloud provider.
package gce
