// Package kube is the Store on Kubernetes Node objects: a node's subnet is its podCIDR, and what peers must know
// of it stands in annotations, in flannel's format (prefix flannel.alpha.coreos.com/ unless told otherwise), so
// that flannel and Twill nodes are peers of each other in one cluster.
//
// The rights that it needs are get, list and watch on nodes, patch on nodes/status, create on events (and patch,
// if repetitions shall be counted), and get on pods where the node's name is found through POD_NAME. It talks to
// the API server through a bare REST client with four registered types: the typed clientset would add tens of
// megabytes to the agent.
package kube
