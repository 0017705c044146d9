package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/target"
)

const fastPathLong = `The fast path sends packets of established flows between pods of different nodes past most of the kernel's network
stack. An agent has it with "FastPath": true in net-conf.json's Backend, or with --fast-path=on.`

func fastPathCommand() *cobra.Command {
	c := &cobra.Command{Use: "fastpath", Short: "Show or pause the fast path of pods' packets", Long: fastPathLong}
	c.AddCommand(fastPathStatusCommand(), fastPathPauseCommand(), fastPathResumeCommand())
	return c
}

func fastPathStatusCommand() *cobra.Command {
	var f target.Flags
	var output string
	c := &cobra.Command{
		Use:   "status [NODE]",
		Short: "Show which packets take the fast path, and why others do not",
		Long: fastPathLong + `
Of each program it prints where it is attached, and of each direction how many packets took the fast path and why others
took the kernel's own.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeNode(&f),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := f.Target(args...)
			if err != nil {
				return err
			}
			r, err := t.FastPath(c.Context())
			if err != nil {
				return err
			}
			return render(c.OutOrStdout(), output, r)
		},
	}
	register(c, &f)
	f.RegisterBPFFS(c.Flags())
	addOutput(c, &output)
	return c
}

func fastPathPauseCommand() *cobra.Command {
	var f target.Flags
	c := &cobra.Command{
		Use:   "pause DURATION [NODE]",
		Short: "Let all packets take the kernel's own path for a while, as to look for a fault",
		Example: `  twillctl fastpath pause 10m
  kubectl twill fastpath pause 10m worker3`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			pause, err := time.ParseDuration(args[0])
			if err != nil || pause <= 0 || pause > maxPause {
				return fmt.Errorf("pause %q: want a time of up to %s, as 10m", args[0], maxPause)
			}
			return pauseFastPath(c, &f, args[1:], pause)
		},
	}
	register(c, &f)
	f.RegisterBPFFS(c.Flags())
	return c
}

// maxPause is longer than anybody looks for a fault without a break.
const maxPause = 24 * time.Hour

func fastPathResumeCommand() *cobra.Command {
	var f target.Flags
	c := &cobra.Command{
		Use:               "resume [NODE]",
		Short:             "End a pause",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeNode(&f),
		RunE:              func(c *cobra.Command, args []string) error { return pauseFastPath(c, &f, args, 0) },
	}
	register(c, &f)
	f.RegisterBPFFS(c.Flags())
	return c
}

// pauseFastPath has nodes pause for so long from now, or end a pause, and prints what they say.
func pauseFastPath(c *cobra.Command, f *target.Flags, node []string, pause time.Duration) error {
	t, err := f.Target(node...)
	if err != nil {
		return err
	}
	said, err := t.PauseFastPath(c.Context(), pause)
	failed := 0
	for _, s := range said {
		switch {
		case s.Err != nil:
			failed++
			fmt.Fprintf(c.ErrOrStderr(), "%s: %v\n", s.Node, s.Err)
		case s.Node != "":
			fmt.Fprintf(c.OutOrStdout(), "%s: %s\n", s.Node, s.Text)
		default:
			fmt.Fprintln(c.OutOrStdout(), s.Text)
		}
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d nodes failed", failed, len(said))
	}
	return err
}
