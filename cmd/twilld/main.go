// Command twilld is Twill's node agent: it leases a subnet for its node and keeps the kernel in the
// state that all nodes' leases ask for.
package main

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

	"github.com/twill-net/twill/agent/install"
	"github.com/twill-net/twill/cmd/internal/plain"
)

// version is set by the build: -ldflags "-X main.version=v1.2.3".
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	stderr := plain.NewWriter(os.Stderr)
	// Logs, plans and errors quote peers' leases.
	switch err := run(ctx, os.Args[1:], plain.NewWriter(os.Stdout), stderr); {
	case err == nil, errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(stderr, "twilld:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseFlags(args, os.LookupEnv, stdout)
	if err != nil {
		return err
	}
	if o.version {
		fmt.Fprintln(stdout, versionText())
		return nil
	}
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
	opts := &slog.HandlerOptions{Level: level}
	switch o.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("--log-format %q: want text or json", o.logFormat)
}

// versionText returns Twill's version and what it was built with: the compiler, and every module
// with its version.
func versionText() string {
	text := "twilld " + version
	if info, ok := debug.ReadBuildInfo(); ok {
		text += " (" + info.GoVersion + ")"
		for _, m := range info.Deps {
			text += "\n  " + m.Path + " " + m.Version
		}
	}
	return text
}
