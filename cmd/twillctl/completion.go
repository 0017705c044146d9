package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/target"
)

// completionTime is how long somebody who presses TAB waits at most.
const completionTime = 3 * time.Second

// arguments returns the arguments of this run. Under the name kubectl_complete-twill, by which kubectl asks a plugin
// how to complete a line, they are such a question.
func arguments() []string {
	args := os.Args[1:]
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl_complete-twill") {
		return append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	return args
}

// completeNode completes the name of a node, of the cluster or the lab.
func completeNode(f *target.Flags) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, noFiles
		}
		ctx, cancel := context.WithTimeout(c.Context(), completionTime)
		defer cancel()
		return f.Complete(ctx), noFiles
	}
}
