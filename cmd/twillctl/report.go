package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/internal/plain"
	"github.com/twill-net/twill/target"
	"github.com/twill-net/twill/ui"
)

func reportCommand() *cobra.Command {
	var f target.Flags
	var path, log string
	var html, all bool
	c := &cobra.Command{
		Use:               "report [NODE]",
		ValidArgsFunction: completeNode(&f),
		Short:             "Write one file for a bug report: facts, findings, plan and log, without secrets",
		Example: `  kubectl twill report node1
  kubectl twill report --all               # twill-reports.tar, with NODE.tar.gz for each node
  twillctl ui twill-report.tar.gz`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			given := c.Flags().Changed("file")
			switch {
			case html && all:
				return errors.New("--html and --all: give one; the page shows all nodes already")
			case html:
				return reportHTML(c.Context(), &f, c.OutOrStdout(), pathOr(given, path, "twill-report.html"), args)
			case all && len(args) > 0:
				return fmt.Errorf("%s: with --all no node can be named", args[0])
			case all:
				return reportAll(c, allReports(&f, log, c.ErrOrStderr()), pathOr(given, path, "twill-reports.tar"))
			}
			t, err := f.Target(args...)
			if err != nil {
				return err
			}
			files, err := t.Report(c.Context(), log)
			if err != nil {
				return err
			}
			if path == "-" {
				return files.WriteTar(plain.Raw(c.OutOrStdout()))
			}
			if err := writeNew(path, files.WriteTar); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s: %d files\n", path, len(files))
			return err
		},
	}
	register(c, &f)
	c.Flags().StringVarP(&path, "file", "f", "twill-report.tar.gz", "the file to write; -: standard output; with --html twill-report.html, with --all twill-reports.tar")
	c.Flags().BoolVar(&all, "all", false, "write the reports of all nodes of a lab or a cluster, NODE.tar.gz each, into one archive")
	c.Flags().BoolVar(&html, "html", false,
		"write the page of twillctl ui with what it shows now instead, as one file that any browser opens: all nodes of a lab or a cluster")
	c.Flags().StringVar(&log, "log", "",
		"the agent's log, whose end goes into the report; the path is known for a lab's node")
	return c
}

// pathOr returns the path that was given, or else the usual one.
func pathOr(given bool, path, usual string) string {
	if given {
		return path
	}
	return usual
}

// reportAll writes the reports of all nodes, and says how many there are. The error is errFindings if a node has none.
func reportAll(c *cobra.Command, r *reports, path string) error {
	write := func(to io.Writer) error { return r.write(c.Context(), to) }
	if path == "-" {
		if err := write(plain.Raw(c.OutOrStdout())); err != nil {
			return err
		}
	} else {
		if err := writeNew(path, write); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(c.OutOrStdout(), "%s: %d nodes\n", path, r.written); err != nil {
			return err
		}
	}
	if len(r.missing) > 0 {
		return errFindings
	}
	return nil
}

// writeNew writes a report that only its owner can read: it has addresses and names of a cluster. The file must not
// exist: in a directory that others may write to, they could have put a file or a link there.
func writeNew(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write the report: %s exists already: remove it, or name another file with --file", path)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write the report: %w", err), os.Remove(path))
	}
	return nil
}

// reportHTML writes the page with all that it shows now.
func reportHTML(ctx context.Context, f *target.Flags, out io.Writer, path string, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s: with --html no node can be named: the page shows all", args[0])
	}
	t, err := f.Any()
	if err != nil {
		return err
	}
	saved, err := ui.Save(ctx, t)
	if err != nil {
		return err
	}
	if path == "-" {
		return saved.WriteHTML(plain.Raw(out))
	}
	if err := writeNew(path, saved.WriteHTML); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %d nodes\n", path, len(saved.Update.Nodes))
	return err
}
