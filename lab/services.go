package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"github.com/twill-net/twill/netstate"
)

// Service is a Service of Kubernetes in the lab's API server, in the namespace default, with one port.
type Service struct {
	Name       string
	ClusterIP  netip.Addr // not valid: it is headless
	Port       uint16
	TargetPort uint16 // the pods'
	NodePort   uint16 // 0: none
	Endpoints  []*Pod

	nearest bool // trafficDistribution: PreferSameNode
	sliced  bool // it has an EndpointSlice
}

const (
	servicesPath = "/api/v1/namespaces/default/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
)

// The ports of a Service that is not given others.
const (
	servicePort = 80
	targetPort  = 8080
)

// AddService makes a Service, or changes one, and adds endpoints to it. The fields are those of a Service's spec
// (type, externalTrafficPolicy, clusterIP) and of its port (port, targetPort, nodePort), in Kubernetes' own words.
func (l *Lab) AddService(ctx context.Context, name string, fields map[string]string, pods []*Pod) (Service, error) {
	api, err := l.kube()
	if err != nil {
		return Service{}, err
	}
	o := object{"metadata": object{"name": name}, "spec": object{}}
	there, err := api.find(ctx, servicesPath, name, &o)
	if err != nil {
		return Service{}, err
	}
	if !there || len(fields) > 0 {
		setFields(o["spec"].(object), fields)
		if err := api.write(ctx, servicesPath, name, there, o); err != nil {
			return Service{}, err
		}
	}
	s, err := l.Service(ctx, name)
	if err != nil {
		return s, err
	}
	for _, p := range pods {
		if !slices.ContainsFunc(s.Endpoints, func(e *Pod) bool { return e.ID() == p.ID() }) {
			s.Endpoints = append(s.Endpoints, p)
		}
	}
	return s, api.writeEndpoints(ctx, s)
}

// RemoveEndpoints takes pods from a Service's endpoints.
func (l *Lab) RemoveEndpoints(ctx context.Context, name string, pods []*Pod) (Service, error) {
	api, err := l.kube()
	if err != nil {
		return Service{}, err
	}
	s, err := l.Service(ctx, name)
	if err != nil {
		return s, err
	}
	s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e *Pod) bool {
		return slices.ContainsFunc(pods, func(p *Pod) bool { return e.ID() == p.ID() })
	})
	return s, api.writeEndpoints(ctx, s)
}

// RemoveService deletes a Service and its endpoints.
func (l *Lab) RemoveService(ctx context.Context, name string) error {
	api, err := l.kube()
	if err != nil {
		return err
	}
	if _, err := l.Service(ctx, name); err != nil {
		return err
	}
	for _, path := range []string{servicesPath, slicesPath} {
		if _, err := api.ask(ctx, http.MethodDelete, path+"/"+name, nil, http.StatusNotFound); err != nil {
			return err
		}
	}
	return nil
}

// Service finds a Service by its name.
func (l *Lab) Service(ctx context.Context, name string) (Service, error) {
	api, err := l.kube()
	if err != nil {
		return Service{}, err
	}
	var o struct {
		Spec struct {
			ClusterIP, TrafficDistribution string
			Ports                          []struct{ Port, TargetPort, NodePort uint16 }
		}
	}
	there, err := api.find(ctx, servicesPath, name, &o)
	if err != nil {
		return Service{}, err
	}
	if !there || len(o.Spec.Ports) == 0 {
		return Service{}, fmt.Errorf("lab %s has no service %q: the command service add makes one", l.spec.Name, name)
	}
	p := o.Spec.Ports[0]
	s := Service{Name: name, Port: p.Port, TargetPort: p.TargetPort, NodePort: p.NodePort,
		nearest: o.Spec.TrafficDistribution == "PreferSameNode"}
	s.ClusterIP, _ = netip.ParseAddr(o.Spec.ClusterIP) // "None" is none
	return s, l.readEndpoints(ctx, api, &s)
}

// readEndpoints finds the pods that are a Service's endpoints.
func (l *Lab) readEndpoints(ctx context.Context, api *kubeStore, s *Service) (err error) {
	var slice struct {
		Endpoints []struct{ Addresses []netip.Addr }
	}
	s.sliced, err = api.find(ctx, slicesPath, s.Name, &slice)
	for _, e := range slice.Endpoints {
		for _, p := range l.Pods() {
			if slices.Contains(p.Addrs, e.Addresses[0]) {
				s.Endpoints = append(s.Endpoints, p)
			}
		}
	}
	return err
}

// setFields puts fields where Kubernetes has them in a Service's spec.
func setFields(spec object, fields map[string]string) {
	if spec["ports"] == nil {
		spec["ports"] = []any{object{"port": servicePort, "targetPort": targetPort}}
	}
	port := spec["ports"].([]any)[0].(object)
	for key, text := range fields {
		var value any = text
		if n, err := strconv.Atoi(text); err == nil {
			value = n
		}
		switch key {
		case "port", "targetPort", "nodePort":
			port[key] = value
		default:
			spec[key] = value
		}
	}
}

// writeEndpoints writes the EndpointSlice of a Service, as the controller manager would.
func (s *kubeStore) writeEndpoints(ctx context.Context, svc Service) error {
	family := s.lab.spec.Families()[0]
	endpoints := []object{}
	for _, p := range svc.Endpoints {
		e := object{"addresses": []netip.Addr{p.Addr(family)}, "nodeName": p.Node.Name, "conditions": object{"ready": true},
			"targetRef": object{"kind": "Pod", "namespace": "default", "name": kubeName(p.Node.Name, p.Name)}}
		if svc.nearest {
			e["hints"] = object{"forNodes": []object{{"name": p.Node.Name}}}
		}
		endpoints = append(endpoints, e)
	}
	kind := map[netstate.Family]string{netstate.IPv4: "IPv4", netstate.IPv6: "IPv6"}[family]
	return s.write(ctx, slicesPath, svc.Name, svc.sliced, object{"addressType": kind, "endpoints": endpoints,
		"ports":    []object{{"port": svc.TargetPort, "protocol": "TCP", "name": ""}},
		"metadata": object{"name": svc.Name, "labels": object{"kubernetes.io/service-name": svc.Name}}})
}

// find reads an object, and reports whether there is one.
func (s *kubeStore) find(ctx context.Context, path, name string, into any) (bool, error) {
	answer, err := s.ask(ctx, http.MethodGet, path+"/"+name, nil, http.StatusNotFound)
	if err != nil {
		return false, err
	}
	var o struct{ Kind string }
	if err := json.Unmarshal(answer, &o); err != nil || o.Kind == "Status" {
		return false, err
	}
	return true, json.Unmarshal(answer, into)
}

// write makes an object, or replaces the one that is there.
func (s *kubeStore) write(ctx context.Context, path, name string, there bool, o object) error {
	method := http.MethodPost
	if there {
		method, path = http.MethodPut, path+"/"+name
	}
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = s.ask(ctx, method, path+"?fieldValidation=Strict", body, http.StatusOK)
	return err
}
