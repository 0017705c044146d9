// Package plugin is Twill's CNI plugin: it gives a pod an interface on the node's bridge, addresses from the
// node's lease and routes to the cluster, in one process. This package is the five commands and their order;
// ipam keeps the addresses, wire talks to the kernel, delegate runs portmap and bandwidth.
package plugin

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

const about = "CNI plugin twill: a container runtime calls it with CNI_COMMAND and a network config on standard input"

// Main handles the one call that the environment and standard input describe, and returns the exit code. The
// result or the error goes to standard output, as JSON.
func Main() int {
	runtime.GOMAXPROCS(1) // or each answer of the kernel wakes a thread on another CPU
	overdue, done := make(chan struct{}), make(chan *types.Error, 1)
	funcs := skel.CNIFuncs{Add: guard(stoppable(add, overdue)), Del: guard(del), Check: guard(check), GC: guard(gc),
		Status: guard(status)}
	versions := version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")
	go func() { done <- skel.PluginMainFuncsWithError(funcs, versions, about) }()
	var e *types.Error
	select {
	case e = <-done:
	case <-overdue:
		e = types.NewError(types.ErrTryAgainLater, "stopped by a signal, and could not undo within a second what it did: want a DEL", "")
	}
	if e != nil {
		_ = e.Print() // standard output is all that the runtime reads; if it is closed, nobody is left to tell
		return 1
	}
	return 0
}

// grace is how long an ADD may take to end after a signal.
const grace = time.Second

type command func(context.Context, *skel.CmdArgs) error

// stoppable runs a command under a context that a signal ends, so that it can roll back. What hangs where no context
// reaches, as a disk does, is overdue after a second. For the same reason a closed standard output must come as an
// error and not as a deadly SIGPIPE. The other commands can be ended anywhere and be repeated, and do without the thread
// that waits for signals.
func stoppable(c command, overdue chan<- struct{}) command {
	return func(ctx context.Context, args *skel.CmdArgs) error {
		// Never stopped: a signal that comes after the result was written must not make a failure of a
		// success.
		ctx, _ = signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
		context.AfterFunc(ctx, func() { time.AfterFunc(grace, func() { close(overdue) }) })
		signal.Ignore(syscall.SIGPIPE)
		return c(ctx, args)
	}
}

// guard turns a panic into an error.
func guard(c command) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("%s stopped at a bug in twill: %v", os.Getenv("CNI_COMMAND"), r)
			}
		}()
		return c(context.Background(), args)
	}
}
