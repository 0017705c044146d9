package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/twill-net/twill/doctor/service"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/walk"
)

func (r *run) services() map[string]func() verb {
	return map[string]func() verb{"service": r.service, "trace": r.trace}
}

// servicePrefix is how commands tell a Service from a host.
const servicePrefix = "service/"

func (r *run) service() verb {
	return verb{
		args:    "add|remove NAME [FIELD=VALUE...] [NODE/POD...]",
		least:   2,
		summary: "make a Service with one port and these endpoints, or add to one; remove it, or some of its endpoints",
		detail: []string{
			"The lab has to be up with -store kube; -proxy has a kube-proxy on each node serve it.",
			"A field is one of a Service's spec, in Kubernetes' words: type=NodePort, externalTrafficPolicy=Local,",
			"sessionAffinity=ClientIP, clusterIP=None; or one of its port: port=80, targetPort=8080, nodePort=30080.",
			"Then $service_NAME is its cluster IP.",
		},
		do: func(c *call) error {
			if r.lab == nil {
				return errNoLab
			}
			s, err := r.alterService(c)
			if err != nil || s.Name == "" {
				return err
			}
			c.printService(s)
			if r.lab.Spec().Proxy == "" {
				c.printf("no kube-proxy serves it: a lab has them with -proxy iptables or nftables\n")
			}
			return c.state.Setenv("service_"+strings.ReplaceAll(s.Name, "-", "_"), s.ClusterIP.String())
		},
	}
}

// alterService returns a Service as it is afterwards; one that is removed has no name.
func (r *run) alterService(c *call) (lab.Service, error) {
	what, name := c.args[0], c.args[1]
	fields := map[string]string{}
	var pods []*lab.Pod
	for _, arg := range c.args[2:] {
		if key, value, ok := strings.Cut(arg, "="); ok {
			fields[key] = value
			continue
		}
		p, err := r.pod(arg)
		if err != nil {
			return lab.Service{}, err
		}
		pods = append(pods, p)
	}
	switch {
	case what == "add":
		return r.lab.AddService(c.ctx, name, fields, pods)
	case what != "remove" || len(fields) > 0:
		return lab.Service{}, fmt.Errorf("service %s: want add NAME [FIELD=VALUE...] [NODE/POD...] or remove NAME [NODE/POD...]",
			strings.Join(c.args, " "))
	case len(pods) > 0:
		return r.lab.RemoveEndpoints(c.ctx, name, pods)
	}
	return lab.Service{}, r.lab.RemoveService(c.ctx, name)
}

func (c *call) printService(s lab.Service) {
	at := "headless"
	if s.ClusterIP.IsValid() {
		at = netip.AddrPortFrom(s.ClusterIP, s.Port).String()
	}
	if s.NodePort != 0 {
		at += fmt.Sprintf(", port %d of each node", s.NodePort)
	}
	var ends []string
	for _, p := range s.Endpoints {
		ends = append(ends, p.ID()+" "+netip.AddrPortFrom(p.Addrs[0], s.TargetPort).String())
	}
	if len(ends) == 0 {
		ends = []string{"no endpoints"}
	}
	c.printf("%s: %s → %s\n", s.Name, at, strings.Join(ends, ", "))
}

// answer is one connection as the endpoint saw it.
type answer struct {
	pod  string
	from netip.Addr
}

// servers are in all endpoints of a Service, for the time of one command.
type servers struct {
	listeners []net.Listener
	mu        sync.Mutex
	answers   []answer
}

// serve starts servers in all endpoints of the Service that an argument names. They have to be closed, also with an error.
func (r *run) serve(ctx context.Context, arg string) (s lab.Service, all *servers, err error) {
	all = &servers{}
	if s, err = r.lab.Service(ctx, strings.TrimPrefix(arg, servicePrefix)); err != nil {
		return s, all, err
	}
	for _, p := range s.Endpoints {
		l, err := p.Listen(ctx, netip.AddrPortFrom(p.Addrs[0], s.TargetPort))
		if err != nil {
			return s, all, fmt.Errorf("serve in %s: %w", p.ID(), err)
		}
		all.listeners = append(all.listeners, l)
		go all.accept(l, p.ID())
	}
	return s, all, nil
}

func (s *servers) accept(l net.Listener, pod string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.answers = append(s.answers, answer{pod, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()})
		s.mu.Unlock()
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn) // until the other side closes
		}()
	}
}

func (s *servers) close() {
	for _, l := range s.listeners {
		l.Close()
	}
}

// taken returns the connections that came so far.
func (s *servers) taken() []answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.answers)
}

// serviceWay is how a script connects to a Service.
type serviceWay struct {
	times int
	seen  string // the client's address, as endpoints have to see it; empty: any
	by    string // the pod that has to answer; empty: any
}

// check returns an error if an answer is not as it has to be.
func (w serviceWay) check(answers []answer) error {
	for _, a := range answers {
		if w.by != "" && a.pod != w.by {
			return fmt.Errorf("%s answers: want %s", a.pod, w.by)
		}
		if w.seen != "" && a.from.String() != w.seen {
			return fmt.Errorf("%s sees %s: want %s", a.pod, a.from, w.seen)
		}
	}
	return nil
}

// connectService connects to a Service: to its cluster IP, to its port of a node, or to its endpoints if it is headless.
func (r *run) connectService(c *call, way serviceWay) error {
	from, err := r.find(c.args[0])
	if err != nil {
		return err
	}
	s, servers, err := r.serve(c.ctx, c.args[1])
	defer servers.close()
	if err != nil {
		return err
	}
	at, err := r.waysTo(s, c.args[2:])
	if err != nil {
		return err
	}
	for i := range way.times {
		if err := askOnce(c.ctx, from, at[i%len(at)]); err != nil {
			fmt.Fprintln(&c.errOut, err)
			return err
		}
	}
	c.printf("%s connects to %v\n", c.args[0], at)
	answers := servers.taken()
	c.printAnswers(answers)
	return way.check(answers)
}

func askOnce(ctx context.Context, from host.Host, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return inTime(from.Ask(ctx, "tcp", at))
}

// waysTo returns the addresses that a client uses; a headless Service's name resolves to those of its endpoints.
func (r *run) waysTo(s lab.Service, node []string) ([]netip.AddrPort, error) {
	if len(node) > 0 {
		n, err := r.node(node[0])
		if err == nil && s.NodePort == 0 {
			err = fmt.Errorf("service %s has no port of its own on nodes: want type=NodePort", s.Name)
		}
		if err != nil {
			return nil, err
		}
		return []netip.AddrPort{netip.AddrPortFrom(n.Underlay()[0], s.NodePort)}, nil
	}
	if s.ClusterIP.IsValid() {
		return []netip.AddrPort{netip.AddrPortFrom(s.ClusterIP, s.Port)}, nil
	}
	var all []netip.AddrPort
	for _, p := range s.Endpoints {
		all = append(all, netip.AddrPortFrom(p.Addrs[0], s.TargetPort))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("service %s is headless and has no endpoints: its name leads nowhere", s.Name)
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, nil
}

// printAnswers says who answered how often, and whom it saw.
func (c *call) printAnswers(answers []answer) {
	counts := map[answer]int{}
	for _, a := range answers {
		counts[a]++
	}
	var lines []string
	for a, n := range counts {
		lines = append(lines, fmt.Sprintf("%s answers %d of %d, and sees %s\n", a.pod, n, len(answers), a.from))
	}
	slices.Sort(lines)
	c.printf("%s", strings.Join(lines, ""))
}

func (r *run) trace() verb {
	return verb{
		args:    "POD service/NAME",
		least:   2,
		summary: "connect to a Service, and say which endpoints are chosen by which rules, or why none answers",
		detail:  []string{"Documentation/debugging.md explains it. Servers run in the endpoints meanwhile, as for connect."},
		do: func(c *call) error {
			p, err := r.pod(c.args[0])
			if err != nil {
				return err
			}
			s, servers, err := r.serve(c.ctx, c.args[1])
			defer servers.close()
			if err != nil {
				return err
			}
			reports, problem, err := walk.Service(c.ctx, r.lab, p, service.Query{Namespace: "default", Name: s.Name})
			if err != nil {
				return err
			}
			return c.printReports(reports, problem)
		},
	}
}

// printReports prints them, and returns an error if connections failed.
func (c *call) printReports(reports []service.Report, problem *service.Problem) error {
	failed := problem != nil
	if failed {
		problem.Write(&c.out)
	}
	for _, r := range reports {
		r.Write(&c.out)
		failed = failed || r.Failed()
	}
	if failed {
		return errors.New("connections fail: the trace says why")
	}
	return nil
}
