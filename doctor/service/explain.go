package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
)

// Code says what is wrong.
type Code string

// The codes.
const (
	NoService      Code = "no-service"
	NoPort         Code = "no-port"
	NoAddress      Code = "no-address"
	IsExternalName Code = "external-name"
	NoEndpoints    Code = "no-endpoints"
	UnnamedPort    Code = "target-port-unknown"
	NoneReady      Code = "none-ready"
	NoneLocal      Code = "none-on-this-node"
	NotProgrammed  Code = "not-programmed"
	RuleStops      Code = "rule-stops"
	PolicyDenies   Code = "policy-denies"
	NobodyListens  Code = "nobody-listens"
	WrongAddress   Code = "listens-elsewhere"
	RefusedThere   Code = "refused"
	NotAccepted    Code = "not-accepted"
	KernelDrops    Code = "kernel-drops"
	ReplyBypasses  Code = "reply-bypasses"
	StaleEndpoint  Code = "stale-endpoint"
	NoReply        Code = "no-answer"
	NotProbed      Code = "not-probed"
)

// Problem is one reason why connections fail.
type Problem struct {
	Code  Code   `json:"code"`
	Place string `json:"place,omitempty"` // the host: node1, node1/pod1
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"`
	Rule  string `json:"rule,omitempty"` // that stops the packets
	Lost  int    `json:"lost"`           // connections
}

// Explain says what became of connections to a target, and why.
func Explain(t Target, o Observations) Report {
	r := Report{Name: t.Name(), Port: t.Port.String(), Way: t.Way, Type: t.Service.Type, To: toText(t), Node: t.Node,
		Sent: len(o.Tries), Unread: o.Unread}
	x := explanation{t, o}
	groups := map[netip.AddrPort][]Try{}
	for _, try := range o.Tries {
		if x.isFine(try) {
			r.Answered++
			continue
		}
		groups[try.endpoint()] = append(groups[try.endpoint()], try)
	}
	r.Endpoints = x.endpoints()
	r.Sticks, r.Prefers = x.sticks(), x.prefers()
	for e, lost := range groups {
		p := x.blame(e, lost)
		p.Lost = len(lost)
		r.Problems = append(r.Problems, p)
	}
	if len(o.Tries) == 0 {
		r.Problems = append(r.Problems, x.unprobed())
	}
	slices.SortFunc(r.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Text, b.Text))
	})
	return r
}

func toText(t Target) string {
	if t.To.IsValid() {
		return t.To.String()
	}
	return "its endpoints"
}

type explanation struct {
	Target
	Observations
}

// isFine reports whether the connection is as it should be. A datagram need not be answered: it is enough that it was
// seen in a pod where somebody listens.
func (x explanation) isFine(t Try) bool {
	if t.Outcome == Answered {
		return true
	}
	e := t.endpoint()
	return x.Port.Proto == "UDP" && t.Outcome == Silent && e.IsValid() && t.Answerer == netip.AddrPort{} &&
		x.Sockets[e].listens(e) && len(t.Hosts) > 0 && x.stop(false, e.Addr()) == nil && strings.Contains(t.Hosts[len(t.Hosts)-1], "/")
}

// blame says why connections fail: those to one endpoint, or if it is not valid, those that none was chosen for.
func (x explanation) blame(e netip.AddrPort, lost []Try) Problem {
	if e.IsValid() {
		return x.blameEndpoint(e, lost[0])
	}
	p := x.blameChoice(lost[0])
	if h := x.stop(true, x.To.Addr()); h != nil && p.Rule == "" {
		p.Rule = h.Host + ": " + h.Object.Text
	}
	if p.Place == "" {
		p.Place = x.Node
	}
	return p
}

// lists is the command that shows a Service's endpoints.
func (x explanation) lists() string {
	return fmt.Sprintf("kubectl --namespace %s get endpointslices --selector=kubernetes.io/service-name=%s --output=yaml",
		x.Service.Namespace, x.Service.Name)
}

// blameObjects says why the Service's objects let nothing be chosen; nil: they do not.
func (x explanation) blameObjects() *Problem {
	good := usable(x.Endpoints)
	switch {
	case x.Way == ByHostPort:
		return nil
	case len(x.Endpoints) == 0 && x.Unnamed > 0:
		return &Problem{Code: UnnamedPort, Text: fmt.Sprintf("the endpoints of %s have no port %s: its targetPort %q names "+
			"no port of the pods", x.Name(), x.Port, x.Port.Target), Fix: fmt.Sprintf(
			"give a container's port that name, or say its number: kubectl --namespace %s edit service %s",
			x.Service.Namespace, x.Service.Name)}
	case len(x.Endpoints) == 0:
		p := &Problem{Code: NoEndpoints, Text: x.Name() + " has no endpoints: ", Fix: x.lists()}
		if x.Service.Selector == "" {
			p.Text += "it has no selector, and nobody has written an EndpointSlice for it"
			return p
		}
		p.Text += "no pod has the labels " + x.Service.Selector + ", or the controller manager does not run"
		p.Fix = fmt.Sprintf("kubectl --namespace %s get pods --selector=%s", x.Service.Namespace, x.Service.Selector)
		return p
	case len(good) == 0:
		return &Problem{Code: NoneReady, Text: fmt.Sprintf("none of the %d endpoints of %s is ready: %s", len(x.Endpoints),
			x.Name(), states(x.Endpoints)), Fix: x.lists()}
	case x.isLocal() && len(on(good, x.Node)) == 0:
		return &Problem{Code: NoneLocal, Place: x.Node, Text: fmt.Sprintf(
			"%s has no ready endpoint on %s, and its %s is Local: those on other nodes are not used (%s)",
			x.Name(), x.Node, x.policy(), states(good)), Fix: fmt.Sprintf(
			`run a pod of it on %s, or kubectl --namespace %s patch service %s --patch '{"spec":{"%s":"Cluster"}}'`,
			x.Node, x.Service.Namespace, x.Service.Name, x.policy())}
	}
	return nil
}

// states lists endpoints with their states.
func states(all []Endpoint) string {
	var texts []string
	for _, e := range all {
		texts = append(texts, e.String()+" is "+e.state())
	}
	return shortList(texts)
}

// unallocated is the chain in which kube-proxy's mode nftables drops what goes to an address that it does not know.
const unallocated = "cluster-ips-check"

// blameChoice says why no endpoint was chosen.
func (x explanation) blameChoice(t Try) Problem {
	if p := x.blameObjects(); p != nil {
		return *p
	}
	if h := x.stop(false, x.To.Addr()); h != nil {
		return x.stopped(h)
	}
	stop := x.stop(true, x.To.Addr())
	if stop != nil && stop.Object.Chain != unallocated {
		return Problem{Code: NotProgrammed, Place: stop.Host, Text: fmt.Sprintf(
			"kube-proxy on %s refuses %s although the API server has endpoints that are ready: it has old objects, "+
				"or loadBalancerSourceRanges does not allow the client", stop.Host, x.To),
			Fix: "look at kube-proxy's log on " + stop.Host}
	}
	if !slices.Contains(x.Watched, x.Node) {
		return Problem{Code: NoReply, Place: x.Node, Text: fmt.Sprintf("%s: %s; the rules of %s, which choose the endpoint, "+
			"could not be watched", x.To, t.Outcome, x.Node), Fix: "trace from a pod of " + x.Node}
	}
	if x.Way == ByHostPort {
		return Problem{Code: NotProgrammed, Place: x.Node, Text: fmt.Sprintf("no rule of %s translates %s to the pod %s",
			x.Node, x.To, x.Endpoints[0]), Fix: "is the plugin portmap in the node's CNI configuration?"}
	}
	if x.seesProxy() {
		return Problem{Code: NotProgrammed, Place: x.Node, Text: fmt.Sprintf("kube-proxy has no rule for %s on %s (%s)",
			x.To, x.Node, t.Outcome),
			Fix: "look at kube-proxy's log on " + x.Node + ": does it run, and does it reach the API server?"}
	}
	return Problem{Code: NotProgrammed, Place: x.Node, Text: fmt.Sprintf(
		"nothing on %s translates %s: packets to it met no rule of kube-proxy", x.Node, x.To),
		Fix: "start kube-proxy, or what replaces it, on " + x.Node}
}

func (x explanation) stopped(h *locate.Hit) Problem {
	if h.Object.Table == netstate.FilterTable {
		return Problem{Code: PolicyDenies, Place: h.Host, Text: fmt.Sprintf("network policies do not let packets from %s to %s, "+
			"an endpoint of %s, pass on %s", h.Src, h.Dst, x.Name(), h.Host), Fix: "kubectl twill policy " + h.Dst.String() +
			", and the same for " + h.Src.String() + ", show which policies these are", Rule: h.Host + ": " + h.Object.Text}
	}
	return Problem{Code: RuleStops, Place: h.Host, Text: fmt.Sprintf("a firewall rule on %s stops packets of %s (%s)",
		h.Host, x.Name(), h.Verdict), Fix: h.Object.Fix, Rule: h.Host + ": " + h.Object.Text}
}

// known returns what the API server has of an endpoint.
func (x explanation) known(e netip.AddrPort) (Endpoint, bool) {
	i := slices.IndexFunc(x.Endpoints, func(o Endpoint) bool { return o.To == e })
	if i < 0 {
		return Endpoint{To: e}, false
	}
	return x.Endpoints[i], true
}

// blameEndpoint says why connections to an endpoint fail.
func (x explanation) blameEndpoint(e netip.AddrPort, t Try) Problem {
	there, known := x.known(e)
	socket := x.Sockets[e]
	switch {
	case t.Answerer.IsValid():
		return Problem{Code: ReplyBypasses, Place: there.Node, Text: fmt.Sprintf("%s answers the client directly, and not "+
			"as %s, so the client resets the connection: the reply goes over the bridge, past connection tracking",
			t.Answerer, t.To),
			Fix: "modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1"}
	case !known:
		return Problem{Code: StaleEndpoint, Place: x.Node, Text: fmt.Sprintf(
			"%s still sends to %s, which is no endpoint of %s any more", x.Node, e, x.Name()), Fix: "look at kube-proxy's log on " + x.Node +
			"; a connection that lasts keeps its endpoint: conntrack -D --reply-src " + e.Addr().String()}
	case x.stop(false, e.Addr()) != nil:
		return x.stopped(x.stop(false, e.Addr()))
	case t.Outcome == Refused && socket.Known && !socket.listens(e):
		return x.unheard(there, socket)
	case t.Outcome == Refused && socket.Known:
		return Problem{Code: RefusedThere, Place: place(there, t), Text: fmt.Sprintf(
			"%s refuses the connection, although somebody listens there", there), Fix: "look at the pod's log"}
	case t.Outcome == Refused:
		return Problem{Code: NobodyListens, Place: place(there, t), Text: fmt.Sprintf(
			"%s refuses the connection: nobody listens on %s %d in the pod", there, x.Port.Proto, e.Port()),
			Fix: x.compare(there)}
	case socket.Known && !socket.listens(e):
		return x.unheard(there, socket)
	case isBound(socket.Full, e):
		return Problem{Code: NotAccepted, Place: place(there, t), Text: fmt.Sprintf(
			"%s listens, and accepts no connections: as many wait as its backlog has room for", there),
			Fix: "look at the pod's log: it hangs, or is too slow for its clients"}
	case len(t.Drops) > 0:
		return dropped(there, t.Drops[0])
	}
	return Problem{Code: NoReply, Place: place(there, t), Text: fmt.Sprintf(
		"%s does not answer: packets to it were seen %s", there, seenAt(t.Hosts)), Fix: "see what follows about the path to it"}
}

func dropped(e Endpoint, d locate.Drop) Problem {
	what := "packets to"
	if d.Back {
		what = "the answers of"
	}
	return Problem{Code: KernelDrops, Place: d.Host, Text: fmt.Sprintf("the kernel of %s drops %s %s: %s", d.Host, what, e, d),
		Fix: "see what follows about the path to it"}
}

// unheard says that nobody listens on the endpoint's port, and what the pod listens on instead.
func (x explanation) unheard(e Endpoint, s Socket) Problem {
	p := Problem{Code: NobodyListens, Place: e.Node, Fix: x.compare(e)}
	i := slices.IndexFunc(s.Bound, func(b netip.AddrPort) bool { return b.Port() == e.To.Port() })
	if i >= 0 {
		p.Code, p.Fix = WrongAddress, "let it listen on all addresses (0.0.0.0 or ::)"
		p.Text = fmt.Sprintf("%s: the pod listens on %s only, which is not the address that connections are sent to",
			e, s.Bound[i])
		return p
	}
	p.Text = fmt.Sprintf("%s: nobody listens on %s %d in the pod; it listens on %s", e, x.Port.Proto, e.To.Port(),
		s.ports())
	return p
}

// compare is how to mend a wrong port.
func (x explanation) compare(e Endpoint) string {
	if x.Way == ByHostPort {
		return "set containerPort of the pod " + e.Pod + " to what it listens on"
	}
	return fmt.Sprintf("set targetPort (now %s) to what the pods listen on: kubectl --namespace %s edit service %s",
		x.Port.Target, x.Service.Namespace, x.Service.Name)
}

func place(e Endpoint, t Try) string {
	switch {
	case t.Reset != "":
		return t.Reset
	case len(t.Hosts) > 0:
		return t.Hosts[len(t.Hosts)-1]
	}
	return e.Node
}

func seenAt(hosts []string) string {
	if len(hosts) == 0 {
		return "nowhere"
	}
	return "on " + strings.Join(hosts, ", ")
}

// unprobed says why nothing was sent.
func (x explanation) unprobed() Problem {
	if p := x.blameObjects(); p != nil {
		return *p
	}
	return Problem{Code: NotProbed, Text: fmt.Sprintf("%s was not connected to: %s is not probed", x.Name(), x.Port.Proto)}
}
