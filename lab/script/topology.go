package script

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

func (r *run) topology() map[string]func() verb {
	return map[string]func() verb{
		"up": r.up, "namespace": r.namespace, "on": r.on, "join": r.join, "leave": r.leave,
	}
}

// upFlags is the lab that the command up describes.
type upFlags struct {
	spec                                lab.Spec
	netConf, names, vagrant, nat, split string
	subnets, mtus, agents, flags        values
}

// values is a flag that can be repeated: NODE=VALUE.
type values []string

func (v *values) String() string { return strings.Join(*v, ",") }

func (v *values) Set(s string) error {
	*v = append(*v, s)
	return nil
}

func (f *upFlags) register(fs *flag.FlagSet) {
	fs.IntVar(&f.spec.Nodes, "nodes", 2, "")
	fs.IntVar(&f.spec.Pods, "pods", 1, "")
	fs.StringVar(&f.names, "names", "", "")
	fs.StringVar(&f.spec.Underlay, "underlay", lab.L2, "")
	fs.StringVar(&f.spec.Backend, "backend", "vxlan", "")
	fs.BoolVar(&f.spec.DirectRouting, "direct-routing", false, "")
	fs.StringVar(&f.spec.Family, "family", lab.IPv4, "")
	fs.StringVar(&f.spec.Store, "store", lab.File, "")
	fs.StringVar(&f.spec.Proxy, "proxy", "", "")
	fs.StringVar(&f.netConf, "net-conf", "", "")
	fs.BoolVar(&f.spec.Bare, "bare", false, "")
	fs.BoolVar(&f.spec.NetworkPolicy, "network-policy", false, "")
	fs.BoolVar(&f.spec.FastPath, "fast-path", false, "")
	fs.StringVar(&f.nat, "nat", "", "")
	fs.StringVar(&f.vagrant, "vagrant", "", "")
	fs.StringVar(&f.split, "split", "", "")
	fs.Var(&f.subnets, "subnet", "")
	fs.Var(&f.mtus, "link-mtu", "")
	fs.Var(&f.agents, "agent", "")
	fs.Var(&f.flags, "agent-flag", "")
}

func (r *run) up() verb {
	var f upFlags
	return verb{
		args:    "[-nodes N] [-pods N] [-names A,B] [-backend B] ...",
		summary: "bring up a lab",
		flags:   f.register,
		detail: []string{
			"-nodes 2 and -pods 1 (on each node); -names names the first nodes, the others are node1, node2, ...;",
			"-underlay l2, or l3: two segments that the nodes take in turn, with a router between them;",
			"-backend vxlan|host-gw|..., -direct-routing, -family 4|6|dual, -store file|etcd|kube, -net-conf FILE;",
			"-subnet NODE=PREFIX keeps a subnet for a node; -agent NODE=FILE is another agent binary;",
			"-agent-flag NODE=--flag=value; -link-mtu NODE=1400; -bare: hosts on an underlay, without agents and pods;",
			"-nat A,B: a translating router in front of these nodes; -vagrant A,B: a first interface eth0, with the",
			"default route and the same address 10.0.2.15 on all of them; -split A,B: IPv6 on an interface of its own.",
			"-proxy iptables|nftables, with -store kube: a kube-proxy on each node; [proxy:nftables] before a command: only then.",
			"-network-policy: agents enforce the policies of the command policy; -fast-path: pods' packets take it.",
			"Node lists can be 'all'. Then $LAB is the lab's name, $node1 node1's underlay address, $node1_6 its IPv6 one,",
			"$node1_subnet its subnet, $node1_pod1 its pod's address, $node1_log its agent's log, $node1_dir the directory",
			"of its subnet.env and checkpoint.json; $WORK is the script's directory, and $TWILLD Twill's agent.",
		},
		do: func(c *call) error {
			if r.lab != nil {
				return errors.New("the lab is up already: one script has one lab")
			}
			if err := f.complete(c.state.Path); err != nil {
				return err
			}
			f.spec.FastPath = f.spec.FastPath || r.FastPath && lab.HasFastPath(f.spec.Backend)
			if f.spec.Proxy != "" {
				f.spec.Proxy = cmp.Or(r.Proxy, f.spec.Proxy)
			}
			f.spec.Name, f.spec.Dir, f.spec.Programs = r.name, r.Dir, r.Programs
			l, err := lab.Up(c.ctx, f.spec, func(line string) { c.printf("%s\n", line) })
			if err != nil {
				return err
			}
			r.lab = l
			return r.publish(c)
		},
	}
}

// complete puts what stands in lists into the spec. path returns where a file is.
func (f *upFlags) complete(path func(string) string) error {
	if f.spec.Pods == 0 {
		f.spec.Pods = -1
	}
	if f.netConf != "" {
		data, err := os.ReadFile(path(f.netConf))
		if err != nil {
			return err
		}
		f.spec.NetConf = data
	}
	if f.names != "" {
		f.spec.Names = strings.Split(f.names, ",")
	}
	f.spec.Agents, f.spec.Sites = map[string]string{}, map[string]lab.Site{}
	f.eachOf(f.nat, func(s *lab.Site) { s.NAT = true })
	f.eachOf(f.vagrant, func(s *lab.Site) { s.Vagrant = true })
	f.eachOf(f.split, func(s *lab.Site) { s.Split = true })
	return errors.Join(
		each(f.agents, func(node, program string) error {
			f.spec.Agents[strings.TrimPrefix(node, "all")] = path(program)
			return nil
		}),
		each(f.flags, func(node, text string) error {
			f.site(node, func(s *lab.Site) { s.Flags = append(s.Flags, text) })
			return nil
		}),
		each(f.subnets, func(node, text string) error {
			p, err := netip.ParsePrefix(text)
			f.site(node, func(s *lab.Site) { s.Subnets = append(s.Subnets, p) })
			return err
		}),
		each(f.mtus, func(node, text string) error {
			mtu := 0
			_, err := fmt.Sscanf(text, "%d", &mtu)
			f.site(node, func(s *lab.Site) { s.MTU = mtu })
			return err
		}),
	)
}

// site alters one node's site, or with "all" that of every node.
func (f *upFlags) site(node string, set func(*lab.Site)) {
	nodes := []string{node}
	if node == "all" {
		nodes = f.spec.NodeNames()
	}
	for _, n := range nodes {
		s := f.spec.Sites[n]
		set(&s)
		f.spec.Sites[n] = s
	}
}

func (f *upFlags) eachOf(list string, set func(*lab.Site)) {
	for name := range strings.SplitSeq(list, ",") {
		if name != "" {
			f.site(name, set)
		}
	}
}

func each(list values, do func(node, value string) error) error {
	for _, text := range list {
		node, value, ok := strings.Cut(text, "=")
		if !ok {
			return fmt.Errorf("%q: want NODE=VALUE", text)
		}
		if err := do(node, value); err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
	}
	return nil
}

// publish sets the variables that name the lab's addresses.
func (r *run) publish(c *call) error {
	var errs []error
	set := func(name string, value any) { errs = append(errs, c.state.Setenv(name, fmt.Sprint(value))) }
	for _, n := range r.lab.Nodes() {
		set(n.Name+"_log", n.Log())
		set(n.Name+"_dir", n.Dir())
		for _, a := range n.Underlay() {
			set(n.Name+suffix(a, n.Underlay()[0]), a)
		}
		for _, s := range n.Subnets() {
			set(n.Name+"_subnet"+suffix(s.Addr(), n.Subnets()[0].Addr()), s)
		}
		for _, p := range n.Pods() {
			for _, a := range p.Addrs {
				set(n.Name+"_"+p.Name+suffix(a, p.Addrs[0]), a)
			}
		}
	}
	outside, addrs := r.lab.Outside()
	if outside.Exists() && len(addrs) > 0 {
		set("outside", addrs[0])
	}
	return errors.Join(errs...)
}

// suffix marks the second family's addresses.
func suffix(a, first netip.Addr) string {
	if netstate.FamilyOf(a) == netstate.FamilyOf(first) {
		return ""
	}
	return "_6"
}

func (r *run) namespace() verb {
	return verb{
		args:    "NODE/NAME...",
		least:   1,
		summary: "make a namespace that is plugged into nothing, named $LAB-NODE-NAME",
		do: func(c *call) error {
			for _, id := range c.args {
				node, name, _ := strings.Cut(id, "/")
				n, err := r.node(node)
				if err != nil {
					return err
				}
				if _, err := n.AddNamespace(name); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (r *run) on() verb {
	return verb{
		args:    "HOST command [argument...]",
		least:   2,
		summary: "run a command on a node, a pod (NODE/POD), outside or underlay",
		do: func(c *call) error {
			h, err := r.find(c.args[0])
			if err != nil {
				return err
			}
			return h.Attach(c.ctx, nil, &c.out, &c.errOut, c.args[1:]...)
		},
	}
}

func (r *run) join() verb {
	count, subnets := 1, values(nil)
	return verb{
		args:    "[-nodes N] [-subnet PREFIX]",
		summary: "add a node with its agent and pods, or N of them at once; -subnet keeps a subnet for it",
		flags: func(fs *flag.FlagSet) {
			fs.IntVar(&count, "nodes", 1, "")
			fs.Var(&subnets, "subnet", "")
		},
		do: func(c *call) error {
			if r.lab == nil {
				return errNoLab
			}
			if count < 1 {
				return fmt.Errorf("join -nodes %d: want 1 or more", count)
			}
			var kept []netip.Prefix
			for _, text := range subnets {
				p, err := netip.ParsePrefix(text)
				if err != nil {
					return fmt.Errorf("join -subnet %q: want a subnet, as 10.244.7.0/24", text)
				}
				kept = append(kept, p)
			}
			nodes, err := r.lab.JoinAtOnce(c.ctx, count, kept...)
			if err != nil {
				return err
			}
			for _, n := range nodes {
				c.printf("%s\n", n.Name)
			}
			return r.publish(c)
		},
	}
}

func (r *run) leave() verb {
	return verb{args: "NODE...", least: 1, summary: "take nodes, and their leases, away", do: func(c *call) error {
		nodes, err := r.nodesOf(c.args)
		for _, n := range nodes {
			err = errors.Join(err, n.Leave(c.ctx))
		}
		return err
	}}
}

func keep() verb {
	return verb{
		args:    "VARIABLE pattern",
		least:   2,
		summary: "keep what the last command printed, as matched by the pattern's first group",
		do: func(c *call) error {
			re, err := regexp.Compile("(?m)" + c.args[1])
			if err != nil {
				return err
			}
			m := re.FindStringSubmatch(c.state.Stdout())
			if m == nil {
				return fmt.Errorf("no match for %q", c.args[1])
			}
			c.printf("%s", c.state.Stdout())
			return c.state.Setenv(c.args[0], m[len(m)-1])
		},
	}
}
