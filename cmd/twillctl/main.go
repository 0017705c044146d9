// Command twillctl shows, checks and explains a Twill network, and runs a lab of one on this machine.
//
// Exit codes: 0 nothing is wrong, 1 there are findings, 2 the command failed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/internal/plain"
)

// version is set by the build: -ldflags "-X main.version=v1.2.3".
var version = "devel"

// errFindings is returned by a command that found something and printed it.
var errFindings = errors.New("there are findings")

// exited is the exit code of a command that lab exec or enterLabs ran, and that has printed its own errors.
type exited int

func (e exited) Error() string { return fmt.Sprintf("the command ended with exit code %d", int(e)) }

func main() {
	_ = os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin") // of nft and iptables, which users' PATH often lacks
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	c := root()
	c.PersistentPreRunE = enterLabs
	c.SetArgs(arguments())
	err := c.ExecuteContext(ctx)
	stop()
	os.Exit(exitCode(err))
}

// exitCode prints the error, unless that was done, and returns the exit code.
func exitCode(err error) int {
	var command exited
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFindings):
		return 1
	case errors.As(err, &command):
		return int(command)
	}
	fmt.Fprintln(plain.NewWriter(os.Stderr), filepath.Base(os.Args[0])+":", err)
	return 2
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:           "twillctl",
		Short:         "Show, check and explain a Twill network",
		Version:       versionText(), // with cobra's own text: with a template the linker keeps all methods of the program
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	// Most of what commands print comes from a cluster, from peers' leases or from the machine.
	c.SetOut(plain.NewWriter(os.Stdout))
	c.SetErr(plain.NewWriter(os.Stderr))
	if isPlugin() {
		c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl twill"}
	}
	c.AddCommand(labCommand(), manCommand(), doctorCommand(), statusCommand(), planCommand(), reportCommand(),
		traceCommand(), captureCommand(), testCommand(), policyCommand(), fastPathCommand(), migrateStoreCommand(), uiCommand(), historyCommand(), dockerOptsCommand(), versionCommand())
	sayUse(c)
	return c
}

// sayUse has all commands say what they want where cobra only counts arguments.
func sayUse(c *cobra.Command) {
	for _, sub := range c.Commands() {
		sayUse(sub)
	}
	check := c.Args
	if check == nil {
		return
	}
	c.Args = func(c *cobra.Command, args []string) error {
		err := check(c, args)
		if err != nil && (strings.HasPrefix(err.Error(), "accepts ") || strings.HasPrefix(err.Error(), "requires ")) {
			return fmt.Errorf("%d arguments: want %s", len(args), c.UseLine())
		}
		return err
	}
}

// isPlugin reports whether kubectl runs this program, under the name kubectl-twill: then commands are about a
// cluster's nodes.
func isPlugin() bool {
	name := filepath.Base(os.Args[0])
	return strings.HasPrefix(name, "kubectl-twill") || strings.HasPrefix(name, "kubectl_complete-twill")
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), c.Root().DisplayName(), "version", versionText())
			return err
		},
	}
}

// versionText returns the version, and that of the compiler.
func versionText() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return version + " (" + info.GoVersion + ")"
	}
	return version
}
