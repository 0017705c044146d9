package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/rootless"
)

// enterLabs runs a command that works with labs again, in the namespaces of the user's labs, if the user is not root. What
// it returns then is how that command ended.
func enterLabs(c *cobra.Command, args []string) error {
	name, wanted := labOf(c, args)
	if !wanted || os.Geteuid() == 0 {
		return nil
	}
	if err := notRoots(c, name); err != nil {
		return err
	}
	switch programs, err := lab.FindPrograms(); {
	case err == nil: // in there root's files are nobody's, and would not be trusted
		_ = os.Setenv("TWILL_BIN_DIR", filepath.Dir(programs.Agent))
	case c.Name() != "down":
		return err
	}
	code, err := enter(c, name)
	if err != nil {
		return err
	}
	return exited(code)
}

// labOf returns the lab that a command works with, and whether it does with any.
func labOf(c *cobra.Command, args []string) (name string, wanted bool) {
	if f := c.Flags().Lookup("lab"); f != nil {
		name = f.Value.String()
		if name == "" && c.Name() == "ui" && len(args) == 0 && c.Flag("cluster").Value.String() == "false" && hasLab(lab.DefaultName) {
			name = lab.DefaultName
		}
		return name, name != ""
	}
	if !c.HasParent() || c.Parent().Name() != "lab" || slices.Contains([]string{"list", "show", "verbs", "faults", "serve", "hold"}, c.Name()) {
		return "", false
	}
	return c.Flag("name").Value.String(), true
}

// hasLab reports whether the caller has a lab of that name.
func hasLab(name string) bool {
	names, err := lab.List("")
	return err == nil && slices.Contains(names, name)
}

// notRoots returns an error if root has the lab and the caller has none of that name.
func notRoots(c *cobra.Command, name string) error {
	if c.Name() == "up" || c.Name() == "run" || hasLab(name) {
		return nil
	}
	if _, err := os.Stat(filepath.Join(lab.DefaultDir, name)); err != nil {
		return nil
	}
	return fmt.Errorf("lab %s is root's: run this as root", name)
}

// enter runs the command there. The page's server listens out here, where the browser is.
func enter(c *cobra.Command, name string) (int, error) {
	if c.Name() != "ui" {
		return rootless.Run(os.Args[1:])
	}
	l, err := net.Listen("tcp", c.Flag("listen").Value.String())
	if err != nil {
		return 0, fmt.Errorf("--listen %s: %w", c.Flag("listen").Value, err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return rootless.Run(append(slices.Clone(os.Args[1:]), "--lab="+name), f)
}

// listen opens the socket of the page's server, or takes the one that enter opened.
func listen(ctx context.Context, address string) (net.Listener, error) {
	if rootless.Inside() {
		return net.FileListener(os.NewFile(3, "listener"))
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", address, err)
	}
	return l, nil
}

// labHold is the process that holds the labs of an ordinary user.
func labHold() *cobra.Command {
	return &cobra.Command{
		Use:    "hold",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if os.Getpid() != 1 {
				return errors.New("hold: it is what twillctl lab starts for a user without root, and nothing to call")
			}
			return rootless.Hold()
		},
	}
}
