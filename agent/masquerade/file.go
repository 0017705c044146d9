package masquerade

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twill-net/twill/internal/causes"
	"github.com/twill-net/twill/internal/filewatch"
)

// File is a config file that is followed. The methods of a nil File are those of one that says nothing.
type File struct {
	path    string
	check   func(exempt []netip.Prefix) error
	event   func(kind, reason, message string) // nil: there is nobody to tell
	log     *slog.Logger
	causes  causes.Log
	current atomic.Pointer[Config]
	failed  string // the error of the last read
}

// Open reads the file at path. What check refuses is an error. Event, if it is not nil, tells the cluster of errors.
func Open(path string, check func([]netip.Prefix) error, log *slog.Logger,
	event func(kind, reason, message string)) (*File, error) {
	f := &File{path: path, check: check, log: log, event: event}
	c, err := f.read()
	if err != nil {
		return nil, err
	}
	f.use(c)
	return f, nil
}

// Exempt returns the networks that the file exempts now. The caller does not write to them.
func (f *File) Exempt() []netip.Prefix {
	if f == nil {
		return nil
	}
	return f.current.Load().Exempt
}

func (f *File) read() (Config, error) {
	c, err := Read(f.path)
	if err == nil {
		if err = f.check(c.Exempt); err != nil {
			err = fmt.Errorf("ip-masq-agent's config %s: %w", f.path, err)
		}
	}
	return c, err
}

func (f *File) use(c Config) {
	for _, w := range c.Warnings {
		f.log.Warn("ip-masq-agent's config", "path", f.path, "reason", w)
	}
	f.current.Store(&c)
}

// Run reads the file again when it changes, and as often as it says, until ctx is done. It calls changed when other
// networks are exempt. After an error, the networks stay as they are.
func (f *File) Run(ctx context.Context, changed func()) error {
	if f == nil {
		return nil
	}
	every := func() time.Duration { return f.current.Load().Resync }
	filewatch.Config(ctx, f.path, every, func(err error) {
		f.causes.Error(f.log, "watch ip-masq-agent's config, which is read at its resyncInterval only", err)
	}, func() {
		if f.reload() {
			changed()
		}
	})
	return nil
}

// reload reports whether other networks are exempt now.
func (f *File) reload() bool {
	c, err := f.read()
	if err != nil {
		f.causes.Error(f.log, "read ip-masq-agent's config, the last good one stays in force", err)
		if f.event != nil && f.failed != err.Error() {
			f.event("Warning", "MasqueradeConfigInvalid", err.Error())
		}
		f.failed = err.Error()
		return false
	}
	f.failed = ""
	old := f.current.Load()
	if slices.Equal(old.Exempt, c.Exempt) && old.Resync == c.Resync && slices.Equal(old.Warnings, c.Warnings) {
		return false
	}
	f.use(c)
	f.log.Info("ip-masq-agent's config changed", "path", f.path, "exempt", c.Exempt)
	return !slices.Equal(old.Exempt, c.Exempt)
}
