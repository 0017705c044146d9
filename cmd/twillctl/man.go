package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write a manual page for each command into a directory",
		Example: "  twillctl man /usr/local/share/man/man1",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("write manual pages: %w", err)
			}
			c.Root().DisableAutoGenTag = true // no date: the same program writes the same pages
			return doc.GenManTree(c.Root(), &doc.GenManHeader{Section: "1", Source: "Twill " + version}, args[0])
		},
	}
}
