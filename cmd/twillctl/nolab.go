//go:build nolab

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
)

// The agent's image has a twillctl without labs: half of the program is the stores and the walk of a lab, which no pod
// of an agent can run.
const hasLabs = false

// errNoLabs is never said: what leads to it is not among this build's commands and flags.
var errNoLabs = errors.New("this build of twillctl has no labs: want one that was built without the tag nolab")

func labCommand() *cobra.Command { return nil }

func (t *target) gatherInLab(context.Context, []string) (doctor.Facts, error) {
	return doctor.Facts{}, errNoLabs
}

func labNodes(string) ([]string, error) { return nil, errNoLabs }

func inLabNode(string, []string) (func(func() error) error, string, error) { return nil, "", errNoLabs }

func (t *target) traceInLab(context.Context, string, string) (doctor.Trip, error) {
	return doctor.Trip{}, errNoLabs
}
