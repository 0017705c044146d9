// Package kube is the Store on Kubernetes Node objects: a node's subnet is its podCIDR, and what peers must know
// of it stands in annotations, in flannel's format (prefix flannel.alpha.coreos.com/ unless told otherwise), so
// that flannel and Twill nodes are peers of each other in one cluster.
//
// The rights that it needs are get, list and watch on nodes, patch on nodes/status, create on events (and patch,
// if repetitions shall be counted), and get on pods where the node's name is found through POD_NAME. Of client-go it
// takes what finds the API server and proves who calls (kubeconfigs, service accounts, certificates, exec plugins); the
// few calls are its own, and of the answers it reads the few fields that it wants: the types of k8s.io/api, the typed
// clients and the reflector would add megabytes to the agent, and double the cost of a peer's heartbeat.
package kube
