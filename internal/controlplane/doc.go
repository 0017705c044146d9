// Package controlplane runs genuine etcd and kube-apiserver processes on this machine. Tests and the lab
// share it, so that both meet the API server's real authentication, authorization, validation and watch
// behaviour instead of a fake's idea of them.
//
// It speaks to the API server with plain HTTP: k8s.io stays an import of subnet/kube alone.
package controlplane
