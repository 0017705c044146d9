package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Catalog is what the API server has of Services, and of what is behind them.
type Catalog struct {
	Services  []Service
	slices    []slice
	hostPorts []hostPort
	nodes     map[netip.Addr]string
	zones     map[string]string // by node
}

// slice is an EndpointSlice.
type slice struct {
	namespace, service string
	ports              []Port // Port is the pods'
	endpoints          []Endpoint
}

// hostPort is a port of a node that leads to a pod.
type hostPort struct {
	node     string
	hostIP   netip.Addr // invalid: all addresses of the node
	port     Port       // Port is the node's
	endpoint Endpoint
}

// object is a list, a Service, an EndpointSlice, a Pod or a Node, as far as it matters here. Numbers may be any, and
// are checked later.
type object struct {
	Kind     string
	Items    []object
	Metadata struct {
		Namespace, Name string
		Labels          map[string]string
	}
	Spec struct {
		Type, ExternalName, SessionAffinity          string
		TrafficDistribution                          string
		ClusterIP                                    string
		ClusterIPs, ExternalIPs                      []string
		InternalTrafficPolicy, ExternalTrafficPolicy string
		Selector                                     map[string]string
		SessionAffinityConfig                        struct {
			ClientIP struct{ TimeoutSeconds int64 }
		}
		Ports       []portObject
		NodeName    string
		HostNetwork bool
		Containers  []struct{ Ports []containerPort }
	}
	Status struct {
		LoadBalancer struct{ Ingress []struct{ IP string } }
		Phase        string
		PodIPs       []struct{ IP string }
		Addresses    []struct{ Type, Address string }
	}
	Ports     []portObject
	Endpoints []endpointObject
}

type portObject struct {
	Name, Protocol string
	Port, NodePort int64
	TargetPort     any
}

type containerPort struct {
	Name, Protocol, HostIP  string
	ContainerPort, HostPort int64
}

type named struct{ Name string }

// names joins them.
func names(all []named) string {
	var texts []string
	for _, n := range all {
		texts = append(texts, n.Name)
	}
	return strings.Join(texts, ",")
}

type endpointObject struct {
	Addresses  []string
	NodeName   string
	TargetRef  struct{ Kind, Name string }
	Conditions struct{ Ready, Serving, Terminating *bool }
	Hints      struct{ ForNodes, ForZones []named }
}

// Parse reads what the API server or "kubectl get --output=json" prints: lists or single objects, one after the
// other. Objects of other kinds are ignored.
func Parse(data []byte) (Catalog, error) {
	c := Catalog{nodes: map[netip.Addr]string{}, zones: map[string]string{}}
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		var o object
		err := d.Decode(&o)
		switch {
		case errors.Is(err, io.EOF):
			return c, nil
		case err != nil:
			return Catalog{}, fmt.Errorf("read Services and EndpointSlices as JSON: %w", err)
		case o.Kind == "":
			return Catalog{}, errors.New("read Services and EndpointSlices: an object has no kind: " +
				"want what kubectl get --output=json prints")
		}
		c.add(o)
	}
}

// add adds an object, or those of a list. Items of a typed list have no kind of their own.
func (c *Catalog) add(o object) {
	kind, isList := strings.CutSuffix(o.Kind, "List")
	if isList {
		for _, item := range o.Items {
			if item.Kind == "" {
				item.Kind = kind
			}
			if !strings.HasSuffix(item.Kind, "List") {
				c.add(item)
			}
		}
		return
	}
	switch o.Kind {
	case "Service":
		c.Services = append(c.Services, o.service())
	case "EndpointSlice":
		c.slices = append(c.slices, o.slice())
	case "Pod":
		c.hostPorts = append(c.hostPorts, o.hostPorts()...)
	case "Node":
		c.zones[o.Metadata.Name] = o.Metadata.Labels["topology.kubernetes.io/zone"]
		for _, a := range o.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil {
				c.nodes[addr.Unmap()] = o.Metadata.Name
			}
		}
	}
}

// defaultSticky is what sessionAffinity: ClientIP means without a timeout.
const defaultSticky = 3 * time.Hour

func (o object) service() Service {
	s := Service{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Type: o.Spec.Type,
		Headless: o.Spec.ClusterIP == "None", ExternalName: o.Spec.ExternalName, Ports: toPorts(o.Spec.Ports),
		Distribution: o.Spec.TrafficDistribution, InternalLocal: o.Spec.InternalTrafficPolicy == "Local", ExternalLocal: o.Spec.ExternalTrafficPolicy == "Local"}
	if s.Type == "" {
		s.Type = "ClusterIP"
	}
	s.ClusterIPs = toAddrs(o.Spec.ClusterIPs)
	if len(s.ClusterIPs) == 0 {
		s.ClusterIPs = toAddrs([]string{o.Spec.ClusterIP})
	}
	s.ExternalIPs = toAddrs(o.Spec.ExternalIPs)
	for _, i := range o.Status.LoadBalancer.Ingress {
		s.ExternalIPs = append(s.ExternalIPs, toAddrs([]string{i.IP})...)
	}
	if o.Spec.SessionAffinity == "ClientIP" {
		s.Sticky = defaultSticky
		if t := o.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; t > 0 && t <= int64(24*time.Hour/time.Second) {
			s.Sticky = time.Duration(t) * time.Second
		}
	}
	var selector []string
	for _, k := range slices.Sorted(maps.Keys(o.Spec.Selector)) {
		selector = append(selector, k+"="+o.Spec.Selector[k])
	}
	s.Selector = strings.Join(selector, ",")
	return s
}

func (o object) slice() slice {
	s := slice{o.Metadata.Namespace, o.Metadata.Labels["kubernetes.io/service-name"], toPorts(o.Ports), nil}
	for _, e := range o.Endpoints {
		is := func(condition *bool, other bool) bool {
			if condition == nil {
				return other
			}
			return *condition
		}
		ready := is(e.Conditions.Ready, true) // who does not know it is to be believed ready
		one := Endpoint{Node: e.NodeName, Ready: ready, Serving: is(e.Conditions.Serving, ready),
			Terminating: is(e.Conditions.Terminating, false), ForNodes: names(e.Hints.ForNodes), ForZones: names(e.Hints.ForZones)}
		if e.TargetRef.Kind == "Pod" {
			one.Pod = e.TargetRef.Name
		}
		for _, a := range toAddrs(e.Addresses[:min(1, len(e.Addresses))]) { // others are not used by anybody
			one.To = netip.AddrPortFrom(a, 0)
			s.endpoints = append(s.endpoints, one)
		}
	}
	return s
}

func (o object) hostPorts() (all []hostPort) {
	if o.Spec.HostNetwork || o.Status.Phase != "" && o.Status.Phase != "Running" {
		return nil
	}
	for _, container := range o.Spec.Containers {
		for _, p := range container.Ports {
			if !isPort(p.HostPort) || !isPort(p.ContainerPort) {
				continue
			}
			h := hostPort{node: o.Spec.NodeName, port: Port{Name: p.Name, Proto: proto(p.Protocol), Port: uint16(p.HostPort)}}
			h.hostIP, _ = netip.ParseAddr(p.HostIP)
			if h.hostIP.IsUnspecified() {
				h.hostIP = netip.Addr{}
			}
			for _, ip := range o.Status.PodIPs {
				for _, a := range toAddrs([]string{ip.IP}) {
					h.endpoint = Endpoint{To: netip.AddrPortFrom(a, uint16(p.ContainerPort)), Node: o.Spec.NodeName,
						Pod: o.Metadata.Namespace + "/" + o.Metadata.Name, Ready: true, Serving: true}
					all = append(all, h)
				}
			}
		}
	}
	return all
}

func isPort(n int64) bool { return n > 0 && n < 1<<16 }

func proto(p string) string {
	if p == "" {
		return "TCP"
	}
	return strings.ToUpper(p)
}

// toPorts leaves out what is no port.
func toPorts(all []portObject) (ports []Port) {
	for _, p := range all {
		if !isPort(p.Port) {
			continue
		}
		port := Port{Name: p.Name, Proto: proto(p.Protocol), Port: uint16(p.Port)}
		if isPort(p.NodePort) {
			port.NodePort = uint16(p.NodePort)
		}
		if p.TargetPort != nil {
			port.Target = fmt.Sprint(p.TargetPort)
		}
		ports = append(ports, port)
	}
	return ports
}

// toAddrs leaves out what is no address.
func toAddrs(all []string) (addrs []netip.Addr) {
	for _, text := range all {
		if a, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}

// endpoints returns those of a Service's port in one family, and how many endpoints it has of all ports.
func (c Catalog) endpoints(s Service, p Port, is4 bool) (all []Endpoint, other int) {
	for _, sl := range c.slices {
		if sl.namespace != s.Namespace || sl.service != s.Name {
			continue
		}
		i := slices.IndexFunc(sl.ports, func(o Port) bool { return o.Name == p.Name && o.Proto == p.Proto })
		for _, e := range sl.endpoints {
			if e.To.Addr().Is4() != is4 {
				continue
			}
			if other++; i < 0 {
				continue
			}
			e.To = netip.AddrPortFrom(e.To.Addr(), sl.ports[i].Port)
			if !slices.Contains(all, e) {
				all = append(all, e)
			}
		}
	}
	return all, other
}
