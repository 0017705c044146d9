package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/backend/cloudroute"
	"github.com/twill-net/twill/internal/steps"
	"github.com/twill-net/twill/netstate/firewall"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/policy/announce/message"
)

// serve runs the agent until a signal. The data path stays when it ends.
func serve(ctx context.Context, o *options, log *slog.Logger) error {
	manager, err := newServiceManager()
	if err != nil {
		return err
	}
	begun := &steps.Table{}
	logCtx, stopLog := context.WithCancel(ctx)
	defer stopLog()
	go begun.Log(logCtx, log)
	unlock, err := lock(ctx, o, begun)
	if err != nil {
		return ignoreDone(ctx, err)
	}
	defer unlock()
	signalled := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	handler := startHandler{steps: begun}
	manager.starting = handler.starting
	group.Go(func() error { return manager.follow(ctx) })
	if o.healthzPort != 0 {
		l, err := listenHealthz(o)
		if err != nil {
			return err
		}
		group.Go(func() error { return agent.Serve(ctx, l, &handler) })
	}
	p, err := build(ctx, o, log, begun)
	if err != nil {
		if signalled.Err() == nil {
			p.store.sayEnd(err)
		}
		cancel()
		return errors.Join(ignoreDone(signalled, err), group.Wait())
	}
	defer p.close()
	log.Info("twilld starts", "node", p.config.Node, "backend", p.config.Network.Backend, "version", o.program.version)
	if err := servePolicies(ctx, group, o, p); err != nil {
		p.store.sayEnd(err)
		cancel()
		return errors.Join(err, group.Wait())
	}
	dropFastPath(o, p.config.Shortcuts, p.config.FastPath, log)
	servePods(ctx, group, o, p)
	watchNetConf(ctx, group, o, p)
	a := agent.New(p.config)
	h := a.Handler(p.metrics)
	handler.agent.Store(&h)
	manager.agent.Store(a)
	group.Go(func() error { return a.Run(ctx) })
	group.Go(func() error { return a.KeepFiles(ctx) })
	if err = group.Wait(); err != nil && signalled.Err() == nil {
		p.store.sayEnd(err)
	}
	log.Info("twilld ends, the data path stays", "node", p.config.Node)
	return err
}

// lock keeps other agents from this one's files and network namespace.
func lock(ctx context.Context, o *options, begun *steps.Table) (unlock func(), err error) {
	settings, err := o.settings()
	if err != nil {
		return nil, err
	}
	defer begun.Begin("waits for " + filepath.Join(filepath.Dir(o.subnetFile), lockName))()
	unlockFile, err := lockFile(ctx, o.subnetFile, lockTimeout)
	if err != nil {
		return nil, err
	}
	unlockHost, err := lockHost(ctx, settings, lockTimeout)
	if err != nil {
		unlockFile()
		return nil, err
	}
	return func() { unlockHost(); unlockFile() }, nil
}

// ignoreDone returns nil for an error that comes after the signal.
func ignoreDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// dryRun prints the plan and exits.
func dryRun(ctx context.Context, o *options, log *slog.Logger, stdout io.Writer) error {
	p, err := build(ctx, o, log, nil)
	if err != nil {
		return err
	}
	defer p.close()
	planned, err := agent.New(p.config).Plan(ctx)
	if err != nil {
		return err
	}
	if p.config.Refused != nil {
		fmt.Fprintf(stdout, "# %s\n", p.config.Refused)
	}
	for _, s := range planned.Skips {
		fmt.Fprintf(stdout, "# node %s is left out: %s\n", s.Node, s.Detail)
	}
	if len(planned.Kernel)+len(planned.Elsewhere) == 0 {
		fmt.Fprintln(stdout, "# nothing to change")
	}
	fmt.Fprint(stdout, planned.Kernel)
	for _, line := range planned.Elsewhere {
		fmt.Fprintln(stdout, line)
	}
	return nil
}

// cleanup deletes everything of Twill's and prints what it was.
func cleanup(ctx context.Context, o *options, stdout io.Writer) error {
	extras, err := openExtras(nil)
	if err != nil {
		return err
	}
	defer extras.close()
	k, err := kernel.New(nil, extras.parts...)
	if err != nil {
		return err
	}
	defer k.Close()
	f := firewall.New()
	defer f.Close()
	fast, fastErr := removeFastPath(o.fastPath.dir)
	fmt.Fprint(stdout, fast)
	plan, err := agent.Cleanup(ctx, agent.Join(k, f))
	fmt.Fprint(stdout, plan)
	policies, policyErr := deletePolicies(ctx)
	fmt.Fprint(stdout, policies)
	lines, cloudErr := cloudroute.Cleanup(ctx, filepath.Dir(o.subnetFile), o.program.clouds)
	for _, line := range lines {
		fmt.Fprintln(stdout, line)
	}
	err = errors.Join(err, policyErr, fastErr, cloudErr)
	installed := agent.Conflist{Target: o.cniTarget}.Installed()
	for _, path := range []string{o.cniTarget, installed, o.subnetFile, o.checkpointFile, message.Socket(o.subnetFile)} {
		switch e := os.Remove(path); {
		case e == nil:
			fmt.Fprintln(stdout, "- file", path)
		case !errors.Is(e, fs.ErrNotExist):
			err = errors.Join(err, e)
		}
	}
	if err != nil || o.healthz() == "" {
		return err
	}
	l, err := listenHealthz(o)
	if err != nil {
		return err
	}
	return agent.Serve(ctx, l, http.HandlerFunc(cleanHandler))
}
