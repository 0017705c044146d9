package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Query names a Service, or an address and port that may be one's.
type Query struct {
	Namespace, Name string // empty: it is asked for by its address
	Addr            netip.Addr
	Port            string // its number or name; empty: all ports
	Proto           string // TCP, UDP, SCTP; empty: any
}

// String returns the query as ParseQuery reads it.
func (q Query) String() string {
	text := "service/" + q.Namespace + "/" + q.Name
	switch {
	case q.Name == "" && q.Addr.Is6():
		text = "[" + q.Addr.String() + "]"
	case q.Name == "":
		text = q.Addr.String()
	}
	if q.Port != "" {
		text += ":" + q.Port
	}
	if q.Proto != "" {
		text += "/" + strings.ToLower(q.Proto)
	}
	return text
}

// ParseQuery reads service/NAMESPACE/NAME, a Service's DNS name or an address, each with :PORT and perhaps /udp. ok is
// false for what may be a pod or a node.
func ParseQuery(text string) (q Query, ok bool, err error) {
	kind, rest, _ := strings.Cut(text, "/")
	if slices.Contains([]string{"service", "services", "svc"}, kind) {
		name := q.cutPort(rest)
		var found bool
		if q.Namespace, q.Name, found = strings.Cut(name, "/"); !found {
			q.Namespace, q.Name = "default", name
		}
		return q, true, q.check(text)
	}
	if host := q.cutPort(text); isServiceName(host) {
		labels := strings.Split(host, ".")
		i := slices.Index(labels, "svc")
		q.Namespace, q.Name = labels[i-1], labels[i-2]
		return q, true, q.check(text)
	}
	address, proto, _ := strings.Cut(text, "/")
	if a, err := netip.ParseAddrPort(address); err == nil {
		q = Query{Addr: a.Addr().Unmap(), Port: strconv.Itoa(int(a.Port())), Proto: strings.ToUpper(proto)}
		return q, true, q.check(text)
	}
	return Query{}, false, nil
}

// cutPort takes :PORT/PROTO off the text.
func (q *Query) cutPort(text string) string {
	name, port, _ := strings.Cut(text, ":")
	q.Port, q.Proto, _ = strings.Cut(port, "/")
	q.Proto = strings.ToUpper(q.Proto)
	return name
}

// isServiceName reports whether a DNS name is a Service's: [HOST.]NAME.NAMESPACE.svc[.cluster.local].
func isServiceName(host string) bool {
	i := slices.Index(strings.Split(host, "."), "svc")
	return i >= 2
}

func (q Query) check(text string) error {
	switch {
	case !q.Addr.IsValid() && (q.Namespace == "" || q.Name == "" || strings.Contains(q.Name, "/")):
		return fmt.Errorf("%q: want service/NAMESPACE/NAME, with :PORT or :PORT/udp if not all ports are meant", text)
	case q.Proto != "" && !slices.Contains([]string{"TCP", "UDP", "SCTP"}, q.Proto):
		return fmt.Errorf("%q: want tcp, udp or sctp after the port", text)
	case q.Addr.IsValid() && q.Port == "0":
		return fmt.Errorf("%q: want a port from 1 to 65535", text)
	}
	return nil
}

// takes reports whether the query is about this port.
func (q Query) takes(p Port) bool {
	return (q.Port == "" || q.Port == p.Name || q.Port == strconv.Itoa(int(p.Port))) && q.isProto(p)
}

func (q Query) isProto(p Port) bool { return q.Proto == "" || q.Proto == p.Proto }
