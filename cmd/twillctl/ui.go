package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/target"
	"github.com/twill-net/twill/ui"
)

func uiCommand() *cobra.Command {
	var f target.Flags
	var address string
	var open bool
	c := &cobra.Command{
		Use:   "ui [REPORT]",
		Short: "Show the network in a browser: map, findings, a packet's way, the last hour",
		Long: `A page that shows a lab, a cluster or this node, and keeps up with it. Point at two pods, and it draws the
packet's way between them: each device, each header, each table entry that decides, and where it is lost, why, and what
mends it. In a lab it also injects faults and runs scripts step by step.
REPORT is a file that twillctl report wrote. Without it, --lab and --cluster it shows the lab of this machine if there is one, and else this node. A cluster is asked
through kubectl exec, with your rights.
The page is served on loopback only. Its address has a token, without which the server says nothing: do not share it.`,
		Example: `  make lab && bin/twillctl ui           the lab of this machine
  kubectl twill ui                      a cluster
  twillctl ui --listen 127.0.0.1:8080   behind "ssh -L 8080:127.0.0.1:8080"`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			source, room, err := sourceOf(&f, args)
			if err != nil {
				return err
			}
			l, err := listen(c.Context(), address)
			if err != nil {
				return err
			}
			defer l.Close()
			view := source.View()
			var b browser
			defer b.forget()
			return ui.New(source, room).Serve(c.Context(), l, func(url string) {
				fmt.Fprintf(c.OutOrStdout(), "The %s is shown at\n  %s\nuntil Ctrl-C.\n", describe(view), url)
				if open {
					b.open(c.Context(), url)
				}
			})
		},
	}
	register(c, &f)
	c.Flags().StringVar(&address, "listen", "127.0.0.1:0", "the address on loopback, port 0 for any that is free")
	c.Flags().BoolVar(&open, "open", true, "open the page in this desktop's browser, if there is one")
	return c
}

func describe(v target.View) string {
	if v.Name == "" {
		return v.Kind
	}
	return v.Kind + " " + v.Name
}

// sourceOf returns what is to be shown, and the lab to learn in, if it is one.
func sourceOf(f *target.Flags, report []string) (target.Source, ui.Classroom, error) {
	if len(report) > 0 {
		s, err := target.OpenReport(report[0], version)
		return s, nil, err
	}
	t, err := f.Any()
	if l, ok := t.(target.Lab); ok {
		return t, classroom{l}, err
	}
	return t, nil, err
}
