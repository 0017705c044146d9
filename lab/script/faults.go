package script

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/faults"
)

// faultVerbs are what goes wrong on the way between nodes and on them.
func (r *run) faultVerbs() map[string]func() verb {
	return map[string]func() verb{"lose": r.lose, "partition": r.partition, "block-udp": r.blockUDP, "mend": r.mend,
		"link-mtu": r.linkMTU, "break-checksums": r.breakChecksums, "fault": r.fault}
}

func (r *run) nodesOf(names []string) ([]*lab.Node, error) {
	if r.lab == nil {
		return nil, errNoLab
	}
	if len(names) == 1 && names[0] == "all" {
		return r.lab.Nodes(), nil
	}
	var nodes []*lab.Node
	for _, name := range names {
		n, err := r.node(name)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func (r *run) lose() verb {
	return verb{
		args:    "PERCENT FROM [TO...]",
		least:   2,
		summary: "make the underlay lose packets that a node sends",
		do: func(c *call) error {
			percent, err := strconv.Atoi(c.args[0])
			if err != nil {
				return fmt.Errorf("%q percent: want a number", c.args[0])
			}
			nodes, err := r.nodesOf(c.args[1:])
			if err != nil {
				return err
			}
			return faults.Lose(c.ctx, r.lab, percent, nodes[0], nodes[1:]...)
		},
	}
}

func (r *run) partition() verb {
	return verb{
		args:    "NODE NODE...",
		least:   2,
		summary: "cut the first node off the others, both ways",
		do: func(c *call) error {
			nodes, err := r.nodesOf(c.args)
			if err != nil {
				return err
			}
			err = faults.Lose(c.ctx, r.lab, 100, nodes[0], nodes[1:]...)
			for _, other := range nodes[1:] {
				err = errors.Join(err, faults.Lose(c.ctx, r.lab, 100, other, nodes[0]))
			}
			return err
		},
	}
}

func (r *run) blockUDP() verb {
	return verb{
		args:    "PORT FROM [TO...]",
		least:   2,
		summary: "make the underlay drop a node's UDP packets to a port",
		do: func(c *call) error {
			port, err := strconv.Atoi(c.args[0])
			if err != nil {
				return fmt.Errorf("port %q: want a number", c.args[0])
			}
			nodes, err := r.nodesOf(c.args[1:])
			if err != nil {
				return err
			}
			return faults.BlockUDP(c.ctx, r.lab, port, nodes[0], nodes[1:]...)
		},
	}
}

func (r *run) breakChecksums() verb {
	return verb{
		args:    "PORT NODE",
		least:   2,
		summary: "make a node's network card break the checksums within VXLAN packets to a UDP port",
		do: func(c *call) error {
			port, err := strconv.Atoi(c.args[0])
			if err != nil {
				return fmt.Errorf("port %q: want a number", c.args[0])
			}
			n, err := r.node(c.args[1])
			if err != nil {
				return err
			}
			return faults.BreakChecksums(r.lab, n, port)
		},
	}
}

func (r *run) mend() verb {
	return verb{summary: "end what lose, partition, block-udp and break-checksums began", do: func(c *call) error {
		if r.lab == nil {
			return errNoLab
		}
		return faults.Restore(c.ctx, r.lab)
	}}
}

func (r *run) linkMTU() verb {
	var far bool
	return verb{
		args:    "[-far] NODE MTU",
		least:   2,
		summary: "change the MTU of a node's cable; with -far only beyond the node's sight",
		flags:   func(fs *flag.FlagSet) { fs.BoolVar(&far, "far", false, "") },
		do: func(c *call) error {
			n, err := r.node(c.args[0])
			if err != nil {
				return err
			}
			mtu, err := strconv.Atoi(c.args[1])
			if err != nil {
				return fmt.Errorf("MTU %q: want a number", c.args[1])
			}
			return faults.SetLinkMTU(r.lab, n, mtu, far)
		},
	}
}

func (r *run) fault() verb {
	return verb{
		args:    "NAME [NODE [PEER]]",
		least:   1,
		summary: "inject a fault of the library; twillctl lab faults lists them",
		detail:  []string{"The node is the first one, and the peer the next, unless they are named."},
		do: func(c *call) error {
			nodes, err := r.nodesOf([]string{"all"})
			if err == nil && len(nodes) < 2 {
				err = errors.New("a fault needs a lab of two nodes at least")
			}
			if err != nil {
				return err
			}
			v := faults.NewTarget(r.lab)
			for i, at := range []**lab.Node{&v.Node, &v.Peer} {
				if len(c.args) > i+1 {
					if *at, err = r.node(c.args[i+1]); err != nil {
						return err
					}
				}
			}
			for _, f := range faults.All() {
				if f.Name == c.args[0] {
					c.printf("%s\n", cmp.Or(f.Description, f.Name))
					return f.Inject(c.ctx, v)
				}
			}
			return fmt.Errorf("there is no fault %q: want one of %s", c.args[0], strings.Join(faultNames(), ", "))
		},
	}
}

func faultNames() []string {
	var names []string
	for _, f := range faults.All() {
		names = append(names, f.Name)
	}
	return names
}
