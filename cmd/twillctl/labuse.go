package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/internal/plain"
	"github.com/twill-net/twill/lab"
)

func withTimeout(c *cobra.Command, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(c.Context(), d, fmt.Errorf("not done within --timeout %v", d))
}

func labDown(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove a lab: its processes, namespaces and files, also after a crash",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			removed, err := lab.Down("", *name)
			if err != nil {
				return err
			}
			text := fmt.Sprintf("lab %s is removed\n", *name)
			switch {
			case removed.Torn != nil:
				text = fmt.Sprintf("lab %s is removed, by the names of what it had: %v\n", *name, removed.Torn)
			case !removed.Found:
				text = fmt.Sprintf("lab %s is not there: nothing to remove\n", *name)
			}
			_, err = fmt.Fprint(c.OutOrStdout(), text)
			return err
		},
	}
}

func labStatus(name *string) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show a lab's nodes, agents and pods",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := lab.Open("", *name)
			if err != nil {
				return err
			}
			return show(c, l.Status(c.Context()), output)
		},
	}
	addOutput(c, &output)
	return c
}

func labPing(name *string) *cobra.Command {
	var output string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "ping",
		Short: "Ping every pod from every other pod",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := lab.Open("", *name)
			if err != nil {
				return err
			}
			report, err := l.Report(c.Context(), wait)
			if err != nil {
				return err
			}
			return show(c, report, output)
		},
	}
	c.Flags().DurationVar(&wait, "wait", 0, "repeat for this long until all pings are answered")
	addOutput(c, &output)
	return c
}

func labExec(name *string) *cobra.Command {
	c := &cobra.Command{
		Use:   "exec HOST [--] COMMAND [ARGUMENT…]",
		Short: "Run a command on a node, a pod (NODE/POD), outside or underlay; exits as the command does",
		Args:  cobra.MinimumNArgs(2),

		ValidArgsFunction: completeHosts(name, 0),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := lab.Open("", *name)
			if err != nil {
				return err
			}
			h, err := l.Find(args[0])
			if err != nil {
				return err
			}
			command := commandOf(args)
			err = h.Attach(c.Context(), c.InOrStdin(), plain.Raw(c.OutOrStdout()), plain.Raw(c.ErrOrStderr()), command...)
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				return exited(exit.ExitCode())
			}
			if err != nil {
				return fmt.Errorf("run %s on %s: %w", command[0], args[0], err)
			}
			return nil
		},
	}
	c.Flags().SetInterspersed(false) // what comes after HOST is the command's
	return c
}

// commandOf is what follows "HOST" or "HOST --": where flags end at HOST, cobra leaves the dashes in.
func commandOf(args []string) []string {
	if len(args) > 2 && args[1] == "--" {
		return args[2:]
	}
	return args[1:]
}

// labServe is how a lab runs its API server: this program again, in the underlay's namespace.
func labServe() *cobra.Command {
	return &cobra.Command{
		Use:    "serve ARGUMENT…",
		Hidden: true,
		RunE:   func(c *cobra.Command, args []string) error { return lab.Serve(c.Context(), args) },
	}
}

func show(c *cobra.Command, r lab.Report, output string) error {
	return render(c.OutOrStdout(), output, r)
}
