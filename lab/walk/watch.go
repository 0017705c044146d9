package walk

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/traffic"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate"
)

// Between a lab's pods nobody talks: the sender pings while packets are watched.
const (
	pingEvery = 100 * time.Millisecond
	pingTakes = 300 * time.Millisecond
)

// Watch watches the whole path between two pods while the first pings the second. It returns where packets
// were seen and why the kernel dropped them.
func Watch(
	ctx context.Context,
	l *lab.Lab,
	from, to *lab.Pod,
	f netstate.Family,
	during time.Duration,
) (seen doctor.Traffic, err error) {
	w := traffic.Watcher{Src: from.Addr(f), Dst: to.Addr(f), Whole: true}
	if !w.Src.IsValid() || !w.Dst.IsValid() {
		return seen, fmt.Errorf(
			"watch %s and %s: they have no addresses of that family, only %v and %v",
			from.ID(),
			to.ID(),
			from.Addrs,
			to.Addrs,
		)
	}
	if w.Places, err = Stops(l, from, to); err != nil {
		return seen, err
	}
	g, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ready := make(chan struct{})
	g.Go(func() (err error) {
		seen, err = w.Run(ctx, func() { close(ready) })
		return err
	})
	g.Go(func() error {
		defer stop()
		select {
		case <-ready:
			pings(ctx, from, host.Ping{To: w.Dst, Timeout: pingTakes}, during)
		case <-ctx.Done():
		}
		return nil
	})
	return seen, g.Wait()
}

// pings sends one echo request after the other; what becomes of them is what is watched.
func pings(ctx context.Context, from *lab.Pod, p host.Ping, during time.Duration) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for over := time.Now().Add(during); time.Now().Before(over); {
		_, _ = from.Ping(ctx, p)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
