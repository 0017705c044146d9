package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/lab"
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
func (t *target) completeNode(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 {
		return nil, directive
	}
	if t.lab != "" {
		names, _, _ := lab.Names("", t.lab) // of a lab that is not there nothing is offered
		return names, directive
	}
	if !t.inCluster() {
		return nil, directive
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionTime)
	defer cancel()
	all, err := t.cluster.agents(ctx)
	if err != nil {
		return nil, directive
	}
	var names []string
	for _, a := range all {
		names = append(names, a.node)
	}
	return names, directive
}
