// Package daemon is the program twilld without the providers of clouds, which its caller adds: flags, the agent with its
// store and its kernel, and what it serves.
package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/twill-net/twill/agent/install"
	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/internal/droplog"
	"github.com/twill-net/twill/internal/plain"
)

// program is what a command makes of this package: its version, and the clouds that it contains, by the backend's type.
type program struct {
	version string
	clouds  map[string]cloud.Opener
}

// Main runs twilld until a signal or an error ends it, and returns the exit status.
func Main(version string, clouds map[string]cloud.Opener) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// That nobody reads the log any more ends nothing. Caught and not ignored, which the programs that are started would
	// inherit.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// Logs, plans and errors quote peers' leases.
	stderr := droplog.New(plain.NewWriter(os.Stderr))
	defer stderr.Close(lastWords)
	err := program{version, clouds}.run(ctx, os.Args[1:], plain.NewWriter(os.Stdout), stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(stderr, "twilld:", err)
	return 1
}

// lastWords is how long the end waits until the log is read.
const lastWords = time.Second

func (p program) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseFlags(args, os.LookupEnv, stdout)
	if err != nil {
		return err
	}
	if o.version {
		fmt.Fprintln(stdout, p.versionText())
		return nil
	}
	o.program = p
	log, level, err := newLogger(o, stderr)
	if err != nil {
		return err
	}
	defer followLevel(level, log)()
	for _, name := range o.ignored {
		log.Warn("this flag has no effect in Twill", "flag", name, "reason", ignoredFlags[name].why)
	}
	if o.installCNI != "" {
		return installPlugins(install.Plugins{From: pluginDir, To: o.installCNI, Replace: o.pods.replace}, stdout)
	}
	if o.fastPath.load {
		loadFastPath(o.fastPath.dir, log)
		return nil
	}
	if err := needNetAdmin(); err != nil {
		return err
	}
	switch {
	case o.cleanup:
		return cleanup(ctx, o, stdout)
	case o.dryRun:
		return dryRun(ctx, o, log, stdout)
	}
	return serve(ctx, o, log)
}

// versionText returns Twill's version and what it was built with: the compiler, and every module of
// others with its version.
func (p program) versionText() string {
	text := "twilld " + p.version
	if info, ok := debug.ReadBuildInfo(); ok {
		text += " (" + info.GoVersion + ")"
		for _, m := range info.Deps {
			if m.Path != "github.com/twill-net/twill" {
				text += "\n  " + m.Path + " " + m.Version
			}
		}
	}
	return text
}
