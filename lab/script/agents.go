package script

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/lab"
)

// agents are what is done to agents, pods and the store.
func (r *run) agents() map[string]func() verb {
	return map[string]func() verb{
		"agent":    r.agent,
		"pod":      r.podVerb,
		"store":    r.store,
		"annotate": r.annotate,
		"forget":   r.forget,
	}
}

func (r *run) agent() verb {
	what := map[string]func(context.Context, *lab.Node) error{
		"start":   func(ctx context.Context, n *lab.Node) error { return n.StartAgent(ctx) },
		"stop":    func(ctx context.Context, n *lab.Node) error { return n.StopAgent(ctx) },
		"kill":    func(_ context.Context, n *lab.Node) error { return n.KillAgent() },
		"restart": func(ctx context.Context, n *lab.Node) error { return n.RestartAgent(ctx) },
	}
	return verb{
		args:    "start|stop|kill|restart NODE...|all",
		least:   2,
		async:   true,
		summary: "start or end agents, all at once; start returns when they are ready",
		do: func(c *call) error {
			do, ok := what[c.args[0]]
			if !ok {
				return fmt.Errorf("agent %q: want start, stop, kill or restart", c.args[0])
			}
			nodes, err := r.nodesOf(c.args[1:])
			if err != nil {
				return err
			}
			group, ctx := errgroup.WithContext(c.ctx)
			for _, n := range nodes {
				group.Go(func() error { return do(ctx, n) })
			}
			return group.Wait()
		},
	}
}

func (r *run) podVerb() verb {
	return verb{
		args:    "add|del|check NODE/POD...",
		least:   2,
		summary: "have the CNI plugin add, delete or check pods",
		do: func(c *call) error {
			for _, id := range c.args[1:] {
				if err := r.alterPod(c, c.args[0], id); err != nil {
					return err
				}
			}
			return r.publish(c)
		},
	}
}

func (r *run) alterPod(c *call, what, id string) error {
	if what == "add" {
		node, name, _ := strings.Cut(id, "/")
		n, err := r.node(node)
		if err != nil {
			return err
		}
		p, err := n.AddPod(c.ctx, name)
		if err == nil {
			c.printf("%s %v\n", p.ID(), p.Addrs)
		}
		return err
	}
	p, err := r.pod(id)
	switch {
	case err != nil:
		return err
	case what == "del":
		return p.Node.DelPod(c.ctx, p)
	case what == "check":
		return p.Node.CheckPod(c.ctx, p)
	}
	return fmt.Errorf("pod %q: want add, del or check", what)
}

func (r *run) store() verb {
	return verb{
		args:    "stop|start|stall|resume",
		least:   1,
		summary: "stop or start the servers of the store; or let them hang, connected and silent, and go on",
		do: func(c *call) error {
			switch {
			case r.lab == nil:
				return errNoLab
			case c.args[0] == "stop":
				return r.lab.StopStore(c.ctx)
			case c.args[0] == "start":
				return r.lab.StartStore(c.ctx)
			case c.args[0] == "stall":
				return r.lab.StallStore()
			case c.args[0] == "resume":
				return r.lab.ResumeStore()
			}
			return fmt.Errorf("store %q: want stop, start, stall or resume", c.args[0])
		},
	}
}

func (r *run) annotate() verb {
	return verb{
		args:    "NODE KEY=VALUE...",
		least:   2,
		summary: "set annotations of a Node object; an empty value deletes one",
		do: func(c *call) error {
			if r.lab == nil {
				return errNoLab
			}
			annotations := map[string]string{}
			for _, text := range c.args[1:] {
				key, value, ok := strings.Cut(text, "=")
				if !ok {
					return fmt.Errorf("annotation %q: want KEY=VALUE", text)
				}
				annotations[key] = value
			}
			return r.lab.Annotate(c.ctx, c.args[0], annotations)
		},
	}
}

func (r *run) forget() verb {
	return verb{
		args:    "NODE...",
		least:   1,
		summary: "delete the leases of nodes, and the checkpoints of their agents",
		do: func(c *call) error {
			nodes, err := r.nodesOf(c.args)
			for _, n := range nodes {
				err = errors.Join(err, n.Forget(c.ctx))
			}
			return err
		},
	}
}
