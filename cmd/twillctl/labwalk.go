package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/target"
)

// walkFlags is what lab walk was told.
type walkFlags struct {
	output, svg string
	ipv6        bool
}

func labWalk(name *string) *cobra.Command {
	var f walkFlags
	c := &cobra.Command{
		Use:   "walk NODE/POD NODE/POD",
		Short: "Follow one ping: its headers on every device, and the table entries that decided",
		Example: `  twillctl lab walk node1/pod1 node2/pod1
  twillctl lab walk --svg walk.svg node1/pod1 node2/pod1    a picture too`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completePods(name),
		RunE: func(c *cobra.Command, args []string) error {
			path, err := target.NewLab(*name, version).Walk(c.Context(), args[0], args[1], f.ipv6)
			if err != nil {
				return err
			}
			return f.show(c, path)
		},
	}
	c.Flags().BoolVarP(&f.ipv6, "ipv6", "6", false, "ping the pods' IPv6 addresses")
	c.Flags().StringVar(&f.svg, "svg", "", "draw the way into this file")
	addOutput(c, &f.output)
	return c
}

func (f walkFlags) show(c *cobra.Command, path walk.Path) error {
	if f.svg != "" {
		if err := writeSVG(f.svg, path); err != nil {
			return err
		}
	}
	write := map[string]func() error{
		"text": func() error { return path.WriteText(c.OutOrStdout()) },
		"json": func() error { return path.WriteJSON(c.OutOrStdout()) },
	}[f.output]
	if write == nil {
		return fmt.Errorf("--output %q: want text or json", f.output)
	}
	if err := write(); err != nil {
		return err
	}
	if !path.Arrived {
		return errFindings
	}
	return nil
}

func writeSVG(name string, path walk.Path) error {
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("draw the way: %w", err)
	}
	if err := path.WriteSVG(file); err != nil {
		file.Close()
		return fmt.Errorf("draw the way: %w", err)
	}
	return file.Close()
}
