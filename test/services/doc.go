// Package services asks "twillctl trace" about Services that real kube-proxies serve in a lab, in the modes iptables
// and nftables: those that answer, and every reason why one does not.
package services
