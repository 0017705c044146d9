package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/examples"
	"github.com/twill-net/twill/lab/faults"
	"github.com/twill-net/twill/lab/script"
)

// runFlags is what lab run was told.
type runFlags struct {
	verbose, quiet, keep bool

	name     string // of the lab; empty: the script's
	proxy    string // mode of kube-proxies; empty: the script's
	timeout  time.Duration
	seed     uint64
	patience time.Duration
}

func labRun(name *string) *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run SCRIPT…",
		Short: "Run scripts: the ones that lab list shows, or files",
		Long: `A script brings up a lab of its own, alters or breaks it, and says what must hold. lab list shows those that
come with Twill; lab show prints one, and lab verbs the vocabulary. On a terminal it shows what the script does and
why, command by command; elsewhere only what failed.`,
		Example: `  twillctl lab run manual-vxlan          an overlay by hand
  twillctl lab run -v stale-mac.txtar    a file of your own, with every command and its output
  twillctl lab run -q arp manual-vxlan   only whether all of it holds`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeScripts,
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("name") {
				f.name = *name
			}
			if _, ok := terminalOf(c.OutOrStdout()); ok && !f.quiet {
				f.verbose = true
			}
			failed := 0
			for _, name := range args {
				ok, err := f.run(c, name)
				if err != nil {
					return err
				}
				if !ok {
					failed++
				}
			}
			if failed > 0 {
				return errFindings
			}
			return nil
		},
	}
	c.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "show every command and what it prints")
	c.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "show only what failed, on a terminal too")
	c.MarkFlagsMutuallyExclusive("verbose", "quiet")
	c.Flags().BoolVar(&f.keep, "keep", false, "leave the lab of a script that failed")
	c.Flags().StringVar(&f.proxy, "proxy", "", "the mode of kube-proxies in labs that have them: iptables or nftables")
	_ = c.RegisterFlagCompletionFunc("proxy", cobra.FixedCompletions(lab.Modes, noFiles)) // the flag is there, and has none yet
	c.Flags().Uint64Var(&f.seed, "seed", 0, "draw the order and the pace of the command rollout from this number; 0: the nodes' order")
	c.Flags().DurationVar(&f.patience, "patience", 0, "let the command within repeat for at least this long, on a busy machine")
	c.Flags().DurationVar(&f.timeout, "timeout", 2*time.Minute, "give up on a script after this time")
	return c
}

// run runs one script and reports whether all of it held.
func (f runFlags) run(c *cobra.Command, name string) (bool, error) {
	data, err := readScript(name)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
	defer cancel()
	out, started := c.OutOrStdout(), time.Now()
	var hidden bytes.Buffer
	log := io.Writer(&hidden)
	if f.verbose {
		log = out
	}
	r := script.Runner{Name: f.name, Keep: f.keep, Proxy: f.proxy, Seed: f.seed, Brief: !f.verbose, Patience: f.patience}
	failed := r.Run(ctx, name, data, log)
	took := time.Since(started).Seconds()
	if failed == nil {
		fmt.Fprintf(out, "ok    %-24s %5.1fs  %s\n", filepath.Base(name), took, script.Title(data))
		return true, nil
	}
	if _, err := hidden.WriteTo(out); err != nil {
		return false, err
	}
	fmt.Fprintf(out, "FAIL  %-24s %5.1fs  %s\n      %s\n", filepath.Base(name), took, script.Title(data), strings.ReplaceAll(failed.Error(), "\n", "\n      "))
	return false, nil
}

// readScript takes what looks like a file as a file, and else one of Twill's own scripts.
func readScript(name string) ([]byte, error) {
	if strings.ContainsAny(name, "./") {
		return os.ReadFile(name)
	}
	return examples.Read(name)
}

func labList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the scripts that come with Twill",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			names, err := examples.Names()
			if err != nil {
				return err
			}
			t := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, name := range names {
				data, err := examples.Read(name)
				if err != nil {
					return err
				}
				fmt.Fprintf(t, "%s\t%s\n", name, script.Title(data))
			}
			return t.Flush()
		},
	}
}

func labShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show SCRIPT",
		Short: "Print a script, to read it or to begin one of your own",
		Args:  cobra.ExactArgs(1),

		ValidArgsFunction: completeScripts,
		RunE: func(c *cobra.Command, args []string) error {
			data, err := readScript(args[0])
			if err == nil {
				_, err = c.OutOrStdout().Write(data)
			}
			return err
		},
	}
}

func labVerbs() *cobra.Command {
	return &cobra.Command{
		Use:   "verbs [COMMAND…]",
		Short: "Explain the commands that scripts know",

		ValidArgsFunction: cobra.FixedCompletions(script.Names(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(c *cobra.Command, args []string) error {
			return script.Vocabulary(c.OutOrStdout(), args...)
		},
	}
}

// labDo is for what breaks a lab, and needs no program that the machine may not have.
func labDo(name *string) *cobra.Command {
	c := &cobra.Command{
		Use:   "do COMMAND [ARGUMENT…]",
		Short: "Run one of the commands that scripts know in a lab that is up",
		Long:  "The commands are those that lab verbs explains; the command fault injects one of those that lab faults lists.",
		Example: `  twillctl lab do fault routes-flushed node1    node1's routes to other nodes are deleted
  twillctl lab do link-mtu -far node2 1400      a switch on the way to node2 loses packets that are larger
  twillctl lab do ping node1/pod1 node2/pod1`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeDo(name),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := lab.Open("", *name)
			if err != nil {
				return err
			}
			return script.Do(c.Context(), l, c.OutOrStdout(), args[0], args[1:]...)
		},
	}
	c.Flags().SetInterspersed(false) // what comes after COMMAND is the command's
	return c
}

func labFaults() *cobra.Command {
	return &cobra.Command{
		Use:   "faults",
		Short: "List the faults that a script can inject by name, with the finding of each",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			t := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, f := range faults.All() {
				fmt.Fprintf(t, "%s\t%s\t%s\n", f.Name, cmp.Or(f.Finding, "-"), f.Description)
			}
			return t.Flush()
		},
	}
}
