// Package controlplane runs genuine control plane parts on this machine: etcd inside this process, and
// kube-apiserver as a process of its own. Tests and the lab share it, so that both meet the API server's real
// authentication, authorization, validation and watch behaviour instead of a fake's idea of them.
//
// It speaks to the API server with plain HTTP: k8s.io stays an import of subnet/kube alone.
package controlplane
