package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Way is how a Service is reached.
type Way string

// The ways.
const (
	ByClusterIP  Way = "cluster IP"
	ByExternalIP Way = "external IP"
	ByNodePort   Way = "node port"
	ByHostPort   Way = "host port"
	Headless     Way = "headless" // its names lead to the endpoints
)

// Target is what is connected to: one port of a Service by one of its addresses.
type Target struct {
	Service   Service        `json:"service"`
	Port      Port           `json:"port"`
	Way       Way            `json:"way"`
	To        netip.AddrPort `json:"to"`             // of Headless it is not valid
	Node      string         `json:"node"`           // whose rules choose the endpoint
	Zone      string         `json:"zone,omitempty"` // of that node
	Endpoints []Endpoint     `json:"endpoints"`
	Unnamed   int            `json:"unnamed,omitempty"` // endpoints that have no such port
}

// Name returns the Service's, or the pod's that has the host port.
func (t Target) Name() string {
	if t.Way == ByHostPort {
		return "host port " + t.Port.String() + " of " + t.Node
	}
	return "Service " + t.Service.String()
}

// isLocal reports whether only endpoints on the node may be chosen.
func (t Target) isLocal() bool {
	if t.Way == ByClusterIP {
		return t.Service.InternalLocal
	}
	return t.Service.ExternalLocal && (t.Way == ByNodePort || t.Way == ByExternalIP)
}

// policy is the field that says so.
func (t Target) policy() string {
	if t.Way == ByClusterIP {
		return "internalTrafficPolicy"
	}
	return "externalTrafficPolicy"
}

// Goals returns what to connect to: the ports in question at each address of the client's families. Without an error
// there is at least one.
func (c Catalog) Goals(q Query, node string, client []netip.Addr) ([]Target, *Problem) {
	if q.Addr.IsValid() {
		return c.byAddress(q, node)
	}
	i := slices.IndexFunc(c.Services, func(s Service) bool { return s.Namespace == q.Namespace && s.Name == q.Name })
	if i < 0 {
		return nil, c.noService(q)
	}
	s := c.Services[i]
	if s.Type == "ExternalName" {
		return nil, &Problem{Code: IsExternalName, Text: fmt.Sprintf(
			"Service %s has no addresses: its name is an alias of %s, which nothing in the cluster serves", s, s.ExternalName),
			Fix: "try the name that it stands for: " + s.ExternalName}
	}
	ports := slices.DeleteFunc(slices.Clone(s.Ports), func(p Port) bool { return !q.takes(p) })
	if len(ports) == 0 {
		return nil, noPort(s, q)
	}
	var all []Target
	for _, p := range ports {
		all = append(all, c.ofPort(s, p, node, client)...)
	}
	if len(all) == 0 {
		return nil, &Problem{Code: NoAddress, Text: fmt.Sprintf(
			"Service %s has no address of the client's family: it has %s", s, addrList(s.ClusterIPs)),
			Fix: fmt.Sprintf("kubectl --namespace %s get service %s --output=jsonpath={.spec.ipFamilies}", s.Namespace, s.Name)}
	}
	return all, nil
}

func addrList(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	if len(texts) == 0 {
		return "none"
	}
	return strings.Join(texts, ", ")
}

// ofPort returns a target for each of the client's families in which the Service has an address.
func (c Catalog) ofPort(s Service, p Port, node string, client []netip.Addr) (all []Target) {
	for _, is4 := range []bool{true, false} {
		if !slices.ContainsFunc(client, func(a netip.Addr) bool { return a.Is4() == is4 }) {
			continue
		}
		t := Target{Service: s, Port: p, Way: ByClusterIP, Node: node, Zone: c.zones[node]}
		t.Endpoints, t.Unnamed = c.endpoints(s, p, is4)
		t.Unnamed -= len(t.Endpoints)
		i := slices.IndexFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Is4() == is4 })
		switch {
		case s.Headless:
			t.Way = Headless
			if len(t.Endpoints) > 0 || is4 == client[0].Is4() {
				all = append(all, t)
			}
		case i >= 0:
			t.To = netip.AddrPortFrom(s.ClusterIPs[i], p.Port)
			all = append(all, t)
		}
	}
	return all
}

// byAddress finds what has an address and a port.
func (c Catalog) byAddress(q Query, node string) ([]Target, *Problem) {
	var all []Target
	for _, s := range c.Services {
		way := ByClusterIP
		if !slices.Contains(s.ClusterIPs, q.Addr) {
			way = ByExternalIP
			if !slices.Contains(s.ExternalIPs, q.Addr) {
				continue
			}
		}
		ports := slices.DeleteFunc(slices.Clone(s.Ports), func(p Port) bool { return !q.takes(p) })
		if len(ports) == 0 {
			return nil, noPort(s, q)
		}
		for _, p := range ports {
			all = append(all, c.target(s, p, way, netip.AddrPortFrom(q.Addr, p.Port), node))
		}
	}
	if host, ok := c.nodes[q.Addr]; ok && len(all) == 0 {
		all = append(c.byNodePort(q, host), c.byHostPort(q, host)...)
	}
	if len(all) == 0 {
		text := fmt.Sprintf("nothing in the cluster has the address %s: no Service, no node", q.Addr)
		if host, ok := c.nodes[q.Addr]; ok {
			text = fmt.Sprintf("%s is the node %s, but port %s is neither a node port of any Service nor a host port "+
				"of its pods", q.Addr, host, q.Port)
		}
		return nil, &Problem{Code: NoService, Text: text, Fix: "kubectl get services --all-namespaces"}
	}
	return all, nil
}

func (c Catalog) target(s Service, p Port, way Way, to netip.AddrPort, node string) Target {
	t := Target{Service: s, Port: p, Way: way, To: to, Node: node, Zone: c.zones[node]}
	t.Endpoints, t.Unnamed = c.endpoints(s, p, to.Addr().Is4())
	t.Unnamed -= len(t.Endpoints)
	return t
}

func (c Catalog) byNodePort(q Query, node string) (all []Target) {
	for _, s := range c.Services {
		for _, p := range s.Ports {
			if p.NodePort != 0 && strconv.Itoa(int(p.NodePort)) == q.Port && q.isProto(p) {
				all = append(all, c.target(s, p, ByNodePort, netip.AddrPortFrom(q.Addr, p.NodePort), node))
			}
		}
	}
	return all
}

func (c Catalog) byHostPort(q Query, node string) (all []Target) {
	for _, h := range c.hostPorts {
		if h.node == node && strconv.Itoa(int(h.port.Port)) == q.Port && q.isProto(h.port) &&
			h.endpoint.To.Addr().Is4() == q.Addr.Is4() && (!h.hostIP.IsValid() || h.hostIP == q.Addr) {
			all = append(all, Target{Port: h.port, Way: ByHostPort, To: netip.AddrPortFrom(q.Addr, h.port.Port), Node: node,
				Endpoints: []Endpoint{h.endpoint}})
		}
	}
	return all
}

// noService says what there is instead.
func (c Catalog) noService(q Query) *Problem {
	var there, elsewhere []string
	for _, s := range c.Services {
		if s.Namespace == q.Namespace {
			there = append(there, s.Name)
		}
		if s.Name == q.Name {
			elsewhere = append(elsewhere, s.Namespace)
		}
	}
	p := Problem{Code: NoService, Text: fmt.Sprintf("there is no Service %s/%s", q.Namespace, q.Name),
		Fix: fmt.Sprintf("kubectl --namespace %s get services", q.Namespace)}
	switch {
	case len(elsewhere) > 0:
		p.Text += "; one of this name is in the namespace " + shortList(elsewhere)
	case len(there) > 0:
		p.Text += fmt.Sprintf("; the namespace %s has %s", q.Namespace, shortList(there))
	}
	return &p
}

// maxListed is how many of anything a sentence names.
const maxListed = 5

func shortList(all []string) string {
	slices.Sort(all)
	if n := len(all); n > maxListed {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxListed], ", "), n-maxListed)
	}
	return strings.Join(all, ", ")
}

func noPort(s Service, q Query) *Problem {
	asked := q.Port
	if q.Proto != "" {
		asked += "/" + q.Proto
	}
	p := &Problem{Code: NoPort, Text: fmt.Sprintf("Service %s has no port %s: it has %s", s, asked, portList(s.Ports)),
		Fix: fmt.Sprintf("use one of its ports, or add it: kubectl --namespace %s edit service %s", s.Namespace, s.Name)}
	i := slices.IndexFunc(s.Ports, func(o Port) bool { return o.Target == q.Port && q.isProto(o) })
	if i >= 0 {
		p.Text += fmt.Sprintf(" (%s is the pods' port; the Service's is %d)", q.Port, s.Ports[i].Port)
	}
	return p
}
