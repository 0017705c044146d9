// Package daemon is the program twilld without the providers of clouds, which its caller adds: flags, the agent with its
// store and its kernel, and what it serves.
package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
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
	log, err := newLogger(o, stderr)
	if err != nil {
		return err
	}
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

func newLogger(o *options, w io.Writer) (*slog.Logger, error) {
	level := slog.LevelInfo
	if o.verbosity > 0 {
		level = slog.LevelDebug
	}
	var handler func(io.Writer, *slog.HandlerOptions) slog.Handler
	switch o.logFormat {
	case "text":
		handler = func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewTextHandler(w, o) }
	case "json":
		handler = func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewJSONHandler(w, o) }
	default:
		return nil, fmt.Errorf("--log-format %q: want text or json", o.logFormat)
	}
	if d, ok := w.(*droplog.Writer); ok {
		d.Report(func(w io.Writer, lost int) {
			slog.New(handler(w, nil)).Warn("lines of the log were lost, nobody read them", "lines", lost)
		})
	}
	return slog.New(handler(w, &slog.HandlerOptions{Level: level})), nil
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
