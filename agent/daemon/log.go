package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/twill-net/twill/internal/droplog"
)

// newLogger returns the log, and its level, which may change.
func newLogger(o *options, w io.Writer) (*slog.Logger, *slog.LevelVar, error) {
	level := &slog.LevelVar{} // info
	if o.verbosity > 0 {
		level.Set(slog.LevelDebug)
	}
	var handler func(io.Writer, *slog.HandlerOptions) slog.Handler
	switch o.logFormat {
	case "text":
		handler = func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewTextHandler(w, o) }
	case "json":
		handler = func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewJSONHandler(w, o) }
	default:
		return nil, nil, fmt.Errorf("--log-format %q: want text or json", o.logFormat)
	}
	if d, ok := w.(*droplog.Writer); ok {
		d.Report(func(w io.Writer, lost int) {
			slog.New(handler(w, nil)).Warn("lines of the log were lost, nobody read them", "lines", lost)
		})
	}
	return slog.New(handler(w, &slog.HandlerOptions{Level: level})), level, nil
}

// followLevel turns debugging on with SIGUSR1, and off with the next one, until the returned function is called.
func followLevel(level *slog.LevelVar, log *slog.Logger) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		for range signals {
			next, text := slog.LevelDebug, "every change is logged from now on"
			if level.Level() == slog.LevelDebug {
				next, text = slog.LevelInfo, "changes are no longer logged one by one"
			}
			level.Set(next)
			log.Info(text, "signal", "SIGUSR1")
		}
	}()
	return func() { signal.Stop(signals); close(signals) }
}
