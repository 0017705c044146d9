package script

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/netstate"
)

func (r *run) asserts() map[string]func() verb {
	return map[string]func() verb{
		"ping":     r.ping,
		"reach":    r.reach,
		"tcp":      r.tcp,
		"no-snat":  r.noSNAT,
		"path-mtu": r.pathMTU,
		"plan":     r.plan,
		"walk":     r.walk,
		"doctor":   r.doctor,
	}
}

// to is the address of a target: an address, or a host's of the given family.
func (r *run) to(target string, f netstate.Family) (netip.Addr, error) {
	if a, err := netip.ParseAddr(target); err == nil {
		return a, nil
	}
	var addrs []netip.Addr
	if target == "outside" && r.lab != nil {
		_, addrs = r.lab.Outside()
	} else if n, err := r.node(target); err == nil {
		addrs = n.Underlay()
	} else if p, podErr := r.pod(target); podErr == nil {
		addrs = p.Addrs
	} else {
		return netip.Addr{}, fmt.Errorf("%q: want an address, a node, NODE/POD or outside", target)
	}
	for _, a := range addrs {
		if netstate.FamilyOf(a) == f {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%s has no address of that family, only %v", target, addrs)
}

// ends are a sender and a receiver's address.
func (r *run) ends(c *call, ipv6 bool) (host.Host, netip.Addr, error) {
	from, err := r.find(c.args[0])
	if err != nil {
		return from, netip.Addr{}, err
	}
	if name, ok := strings.CutPrefix(c.args[1], servicePrefix); ok {
		s, err := r.lab.Service(c.ctx, name)
		if err == nil && !s.ClusterIP.IsValid() {
			err = fmt.Errorf("service %s is headless: want one with a cluster IP", name)
		}
		return from, s.ClusterIP, err
	}
	to, err := r.to(c.args[1], r.family(ipv6))
	return from, to, err
}

// family returns IPv6 where it was asked for by the flag -6, or where the lab has nothing else.
func (r *run) family(ipv6 bool) netstate.Family {
	if ipv6 || r.lab != nil && r.lab.Spec().Family == lab.IPv6 {
		return netstate.IPv6
	}
	return netstate.IPv4
}

// pingTimeout bounds a ping. The kernel of a busy machine may take a second to say that a new device has a carrier, and
// nothing is sent before.
const pingTimeout = 2 * time.Second

func (r *run) ping() verb {
	var p host.Ping
	var ipv6 bool
	return verb{args: "[-6] [-size BYTES] [-df] FROM TO", least: 2, summary: "ping a host, or an address, once",
		detail: []string{"-size is that of the whole IP packet; a ping program's -s says 28 (IPv6: 48) bytes less."},
		flags: func(fs *flag.FlagSet) {
			fs.IntVar(&p.Size, "size", 0, "")
			fs.BoolVar(&p.DontFragment, "df", false, "")
			fs.BoolVar(&ipv6, "6", false, "")
		},
		do: func(c *call) error {
			from, to, err := r.ends(c, ipv6)
			if err != nil {
				return err
			}
			p.To, p.Timeout = to, pingTimeout
			took, err := from.Ping(c.ctx, p)
			if err != nil {
				return fmt.Errorf("%s → %s: %w", c.args[0], to, err)
			}
			c.printf("%s answers %s after %.2f ms\n", to, c.args[0], took.Seconds()*1000)
			return nil
		}}
}

func (r *run) reach() verb {
	var ring bool
	return verb{
		args:    "[-ring]",
		summary: "ping every pod from every other pod, until all answer or five seconds have passed",
		detail: []string{
			"-ring: every pod pings the next one only, once. All namespaces share one ARP table of 1024 entries.",
		},
		flags: func(fs *flag.FlagSet) { fs.BoolVar(&ring, "ring", false, "") },
		do: func(c *call) error {
			if r.lab == nil {
				return errNoLab
			}
			pings, err := r.pings(c, ring)
			if err != nil {
				return err
			}
			var errs []error
			for _, p := range pings {
				if !p.OK() {
					errs = append(errs, fmt.Errorf("%s → %s (%s): %s", p.From, p.To, p.Addr, p.Error))
				}
			}
			c.printf("%d of %d pings answered\n", len(pings)-len(errs), len(pings))
			if len(pings) == 0 {
				errs = append(errs, errors.New("there are no two pods"))
			}
			return errors.Join(errs...)
		},
	}
}

func (r *run) pings(c *call, ring bool) ([]lab.Ping, error) {
	if !ring {
		return r.lab.Converge(c.ctx, 5*time.Second)
	}
	var pings []lab.Ping
	pods := r.lab.Pods()
	for i, p := range pods {
		next := pods[(i+1)%len(pods)]
		ping := lab.Ping{From: p.ID(), To: next.ID(), Addr: next.Addrs[0]}
		if _, err := p.Ping(c.ctx, host.Ping{To: ping.Addr, Timeout: pingTimeout}); err != nil {
			ping.Error = err.Error()
		}
		pings = append(pings, ping)
	}
	return pings, nil
}

// tcpTimeout bounds a transfer: the kernel alone would try to connect for two minutes.
const tcpTimeout = 10 * time.Second

func (r *run) tcp() verb {
	var size int64
	var ipv6 bool
	return verb{
		args:    "[-6] [-bytes N] FROM TO",
		least:   2,
		summary: "send a megabyte over TCP; prints the sender's address as the receiver sees it",
		flags: func(fs *flag.FlagSet) {
			fs.Int64Var(&size, "bytes", 1<<20, "")
			fs.BoolVar(&ipv6, "6", false, "")
		},
		do: func(c *call) error {
			t, err := r.send(c, size, ipv6)
			if err == nil {
				c.printf("%d bytes from %s\n", t.Bytes, t.Peer)
			}
			return err
		},
	}
}

func (r *run) send(c *call, size int64, ipv6 bool) (host.Transfer, error) {
	ctx, cancel := context.WithTimeout(c.ctx, tcpTimeout)
	defer cancel()
	from, addr, err := r.ends(c, ipv6)
	if err != nil {
		return host.Transfer{}, err
	}
	to, err := r.find(c.args[1])
	if err != nil {
		return host.Transfer{}, err
	}
	t, err := from.Send(ctx, to, addr, size)
	if err != nil && ctx.Err() != nil && c.ctx.Err() == nil { // it is this command's error, not the script's end
		err = fmt.Errorf("%d bytes did not arrive within %s: %s", size, tcpTimeout, err.Error())
	}
	return t, err
}

func (r *run) noSNAT() verb {
	var ipv6 bool
	return verb{args: "[-6] POD POD", least: 2, summary: "a pod must be seen by another with its own address",
		flags: func(fs *flag.FlagSet) { fs.BoolVar(&ipv6, "6", false, "") },
		do: func(c *call) error {
			from, err := r.pod(c.args[0])
			if err != nil {
				return err
			}
			t, err := r.send(c, 1000, ipv6)
			if err != nil {
				return err
			}
			c.printf("%s is seen as %s\n", from.ID(), t.Peer)
			if !slices.Contains(from.Addrs, t.Peer) {
				return fmt.Errorf("%s is seen as %s: want its own address, one of %v", from.ID(), t.Peer, from.Addrs)
			}
			return nil
		}}
}

func (r *run) pathMTU() verb {
	var ipv6 bool
	return verb{
		args:    "[-6] FROM TO MTU",
		least:   3,
		summary: "a packet of MTU bytes must pass whole, and one byte more must not",
		flags:   func(fs *flag.FlagSet) { fs.BoolVar(&ipv6, "6", false, "") },
		do: func(c *call) error {
			mtu, err := strconv.Atoi(c.args[2])
			if err != nil {
				return fmt.Errorf("MTU %q: want a number", c.args[2])
			}
			from, to, err := r.ends(c, ipv6)
			if err != nil {
				return err
			}
			if _, err := from.Ping(c.ctx, host.Ping{To: to, Size: mtu, DontFragment: true}); err != nil {
				return fmt.Errorf("%d bytes from %s to %s: %w", mtu, c.args[0], to, err)
			}
			if _, err := from.Ping(c.ctx, host.Ping{To: to, Size: mtu + 1, DontFragment: true, Timeout: 300 * time.Millisecond}); err == nil {
				return fmt.Errorf("%d bytes from %s to %s pass: want no more than %d", mtu+1, c.args[0], to, mtu)
			}
			return nil
		},
	}
}

func (r *run) walk() verb {
	var ipv6 bool
	var svg string
	return verb{
		args:    "[-6] [-svg FILE] POD POD",
		least:   2,
		summary: "follow one ping; prints every device that saw it, and the table entries that decided",
		detail: []string{
			"-svg draws it into a file, which is the script's own unless its name begins with a slash.",
		},
		flags: func(fs *flag.FlagSet) {
			fs.BoolVar(&ipv6, "6", false, "")
			fs.StringVar(&svg, "svg", "", "")
		},
		do: func(c *call) error {
			path, err := r.follow(c, r.family(ipv6))
			if err == nil && svg != "" {
				err = draw(c.state.Path(svg), path)
			}
			if err != nil {
				return err
			}
			if err := path.WriteText(&c.out); err != nil || path.Arrived {
				return err
			}
			return fmt.Errorf("the ping from %s to %s did not arrive: %s", path.From, path.To, path.Reply)
		},
	}
}

func (r *run) follow(c *call, f netstate.Family) (walk.Path, error) {
	from, err := r.pod(c.args[0])
	if err != nil {
		return walk.Path{}, err
	}
	to, err := r.pod(c.args[1])
	if err != nil {
		return walk.Path{}, err
	}
	return walk.Walk(c.ctx, r.lab, from, to, f)
}

func draw(file string, path walk.Path) error {
	var picture bytes.Buffer
	if err := path.WriteSVG(&picture); err != nil {
		return err
	}
	return os.WriteFile(file, picture.Bytes(), 0o644)
}

// nothingToDo is what twilld --dry-run says of a node that is as it should be.
const nothingToDo = "# nothing to change"

func (r *run) plan() verb {
	return verb{
		args:    "NODE...|all",
		least:   1,
		summary: "nothing on these nodes may differ from what the leases ask for; prints what does",
		detail: []string{
			"It runs the node's twilld with --dry-run beside the running agent, whose repairs take a moment: say within 5s plan.",
		},
		do: func(c *call) error {
			nodes, err := r.nodesOf(c.args)
			if err != nil {
				return err
			}
			for _, n := range nodes {
				before := c.out.Len()
				if err := n.Attach(c.ctx, nil, &c.out, &c.errOut, n.DryRun()...); err != nil {
					return fmt.Errorf("dry run on %s: %w", n.Name, err)
				}
				if said := c.out.String()[before:]; !strings.Contains(said, nothingToDo) {
					return fmt.Errorf("%s is not as it should be:\n%s", n.Name, said)
				}
			}
			return nil
		},
	}
}
