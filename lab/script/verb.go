package script

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"rsc.io/script"
)

// verb is a command of the vocabulary.
type verb struct {
	args, summary string
	detail        []string
	least         int  // arguments, flags not counted
	async         bool // it may run in the background
	flags         func(*flag.FlagSet)
	do            func(*call) error
}

// call is a verb with its arguments.
type call struct {
	ctx    context.Context
	state  *script.State
	args   []string // without flags
	out    strings.Builder
	errOut strings.Builder
}

// verbs are all commands. Each call makes new ones, because flags keep their values.
func (r *run) verbs() map[string]func() verb {
	all := map[string]func() verb{"within": r.within, "keep": keep}
	for _, group := range []map[string]func() verb{r.topology(), r.faultVerbs(), r.agents(), r.asserts(), r.streamVerbs(), r.changes(), r.policies(), r.frames(), r.services()} {
		maps.Insert(all, maps.All(group))
	}
	return all
}

func (r *run) command(v func() verb) script.Cmd {
	usage := v()
	return script.Command(script.CmdUsage{Summary: usage.summary, Args: usage.args, Detail: usage.detail, Async: usage.async},
		func(s *script.State, args ...string) (script.WaitFunc, error) {
			c := &call{ctx: s.Context(), state: s}
			ended := make(chan error, 1)
			do := func() { ended <- c.run(v(), args) }
			if usage.async {
				go do()
			} else {
				do()
			}
			return func(*script.State) (string, string, error) {
				err := <-ended
				return c.out.String(), c.errOut.String(), err
			}, nil
		})
}

func (c *call) run(v verb, args []string) error {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	if v.flags != nil {
		v.flags(fs)
	}
	if err := fs.Parse(args); err != nil {
		return fmt.Errorf("%w: want %s", err, v.args)
	}
	if c.args = fs.Args(); len(c.args) < v.least {
		return fmt.Errorf("%d arguments: want %s", len(c.args), v.args)
	}
	return v.do(c)
}

// printf writes to the command's stdout, which the commands stdout and keep look at.
func (c *call) printf(format string, args ...any) { fmt.Fprintf(&c.out, format, args...) }

// within repeats another command.
func (r *run) within() verb {
	return verb{
		args:    "duration [!] command [argument...]",
		least:   2,
		summary: "repeat a command until it succeeds (with !: fails)",
		detail: []string{
			"What follows from a change in another agent's lease takes a moment; within 5s is generous.",
		},
		do: func(c *call) error {
			limit, err := time.ParseDuration(c.args[0])
			if err != nil {
				return err
			}
			args, want := c.args[1:], true
			if args[0] == "!" {
				args, want = args[1:], false
			}
			v, ok := r.verbs()[args[0]]
			if !ok {
				return fmt.Errorf("%q cannot be repeated: want a command of the lab", args[0])
			}
			return c.repeat(v, args[1:], want, max(limit, r.Patience))
		},
	}
}

func (c *call) repeat(v func() verb, args []string, want bool, limit time.Duration) error {
	end := time.After(limit)
	for {
		try := &call{ctx: c.ctx, state: c.state}
		err := try.run(v(), args)
		c.out, c.errOut = try.out, try.errOut
		if (err == nil) == want {
			return nil
		}
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-end:
			return errors.Join(fmt.Errorf("it is still so after %v", limit), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
