// Package service explains what becomes of connections to a Service of Kubernetes: which endpoint was chosen and by
// which rule, or why none was. It is a pure function from the Service's objects, as the API server has them, and from
// what was seen of real connections.
package service

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Service is a Service, as far as packets to it are concerned.
type Service struct {
	Namespace     string        `json:"namespace"`
	Name          string        `json:"name"`
	Type          string        `json:"type"` // ClusterIP, NodePort, LoadBalancer, ExternalName
	ClusterIPs    []netip.Addr  `json:"clusterIPs,omitempty"`
	ExternalIPs   []netip.Addr  `json:"externalIPs,omitempty"` // and those of its load balancer
	Headless      bool          `json:"headless,omitempty"`    // its names lead to the pods
	ExternalName  string        `json:"externalName,omitempty"`
	Selector      string        `json:"selector,omitempty"` // "app=web,tier=front"; empty: somebody writes its endpoints
	Ports         []Port        `json:"ports"`
	InternalLocal bool          `json:"internalLocal,omitempty"` // internalTrafficPolicy
	ExternalLocal bool          `json:"externalLocal,omitempty"` // externalTrafficPolicy
	Sticky        time.Duration `json:"sticky,omitempty"`        // sessionAffinity: ClientIP; 0: None
	Distribution  string        `json:"distribution,omitempty"`  // trafficDistribution: PreferSameNode, PreferSameZone
}

func (s Service) String() string { return s.Namespace + "/" + s.Name }

// Port is one of a Service's ports.
type Port struct {
	Name     string `json:"name,omitempty"`
	Proto    string `json:"proto"` // TCP, UDP, SCTP
	Port     uint16 `json:"port"`
	NodePort uint16 `json:"nodePort,omitempty"`
	Target   string `json:"target,omitempty"` // the pods' port: a number or a name
}

func (p Port) String() string {
	text := fmt.Sprintf("%d/%s", p.Port, p.Proto)
	if p.Name != "" {
		text = p.Name + " " + text
	}
	return text
}

// portList lists ports for people.
func portList(ports []Port) string {
	var all []string
	for _, p := range ports {
		all = append(all, p.String())
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// Endpoint is one port of one pod behind a Service.
type Endpoint struct {
	To          netip.AddrPort `json:"to"`
	Node        string         `json:"node,omitempty"`
	Pod         string         `json:"pod,omitempty"`
	Ready       bool           `json:"ready"`
	Serving     bool           `json:"serving"`
	Terminating bool           `json:"terminating"`
	ForNodes    string         `json:"forNodes,omitempty"` // whose it is by its hints, separated by commas
	ForZones    string         `json:"forZones,omitempty"`
}

func (e Endpoint) String() string {
	text := e.To.String()
	switch {
	case e.Pod != "" && e.Node != "":
		text += " (" + e.Pod + " on " + e.Node + ")"
	case e.Pod != "" || e.Node != "":
		text += " (" + e.Pod + e.Node + ")"
	}
	return text
}

// state is what the endpoint's conditions say.
func (e Endpoint) state() string {
	switch {
	case e.Ready:
		return "ready"
	case e.Terminating && e.Serving:
		return "terminating, but serving"
	case e.Terminating:
		return "terminating"
	}
	return "not ready"
}

// usable returns the endpoints that get connections: those that are ready, and if none is, those that still serve
// while they terminate, as in kube-proxy (KEP-1669).
func usable(all []Endpoint) (good []Endpoint) {
	for _, e := range all {
		if e.Ready {
			good = append(good, e)
		}
	}
	if len(good) > 0 {
		return good
	}
	for _, e := range all {
		if e.Serving && e.Terminating {
			good = append(good, e)
		}
	}
	return good
}

// on returns the endpoints on a node.
func on(all []Endpoint, node string) (there []Endpoint) {
	for _, e := range all {
		if e.Node == node {
			there = append(there, e)
		}
	}
	return there
}
