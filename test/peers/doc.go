// Package peers is a fuzzer of one hostile node. It has what a kubelet has, the right to write its own Node,
// and writes whatever it likes, as often as it likes, to a real kube-apiserver of a lab, while the other
// nodes' pods ping each other. Its test has the build tag soak:
//
//	make fuzz-peers PEERS_TIME=20m PEERS_SEED=7
//
// A seed is a history of writes; how fast the API server takes them is its own business.
package peers
