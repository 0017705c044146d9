// Package kube is the Store on Kubernetes objects. A node's subnet is its podCIDR; what peers must know of it
// stands in annotations of flannel's format (prefix flannel.alpha.coreos.com/ by default), so that flannel and Twill
// nodes are peers of each other in one cluster.
//
// A reflector lists and watches the metadata of all Nodes, because a kubelet writes its Node every few minutes and the
// whole object has 13 kB and more. Metadata lacks the podCIDRs, which cannot change while a Node exists: they are read
// once for each UID and kept in the agent's checkpoint. This node's own object is read in full after each change.
//
// That watch costs 2 kB for each heartbeat of each node. With subnet.StoreBoth, what a node publishes stands in Lease
// objects, too, one for each subnet, and with subnet.StoreLeases peers are read from there: nothing comes then but what
// changes. The three oldest nodes guard those that have no Lease objects, such as flannel's.
//
// The rights that the store needs are get, list and watch on nodes, patch on nodes/status, create on events (and patch,
// to count repeated events), and get on pods where the node's name is found through POD_NAME. Lease objects take get,
// list, watch, create and patch on leases in the agents' namespace, and self-leasing delete, and patch on nodes.
//
// Objects are read into small structs: the types and typed clients of k8s.io/api would make the agent's file three
// megabytes larger.
package kube
