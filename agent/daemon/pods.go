package daemon

import (
	"context"
	"encoding/json"
	"flag"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/agent/install"
	"github.com/twill-net/twill/agent/pods"
	"github.com/twill-net/twill/internal/smallfile"
	"github.com/twill-net/twill/subnet"
)

// podOptions are the flags about what the CNI plugin needs and leaves behind. Flannel has none of them.
type podOptions struct {
	reservations string
	grace        time.Duration
	binDir       string
	replace      bool
}

func (o *podOptions) register(fs *flag.FlagSet) {
	fs.StringVar(&o.reservations, "reservations-dir", "",
		"the CNI plugin's directory of reserved addresses, in which those that no pod has are freed; "+
			"empty: with --cni-conf-source "+
			defaultReservations+" (or the conflist's name in place of cbr0), else none")
	fs.DurationVar(&o.grace, "reservations-grace", 2*time.Minute,
		"free a reservation that has had no pod for so long; 0: never")
	fs.StringVar(&o.binDir, "cni-bin-dir", "",
		"keep the image's CNI plugins installed in this directory; empty: do not")
	fs.BoolVar(&o.replace, "cni-bin-replace", false,
		"with --cni-bin-dir and --install-cni: also replace portmap, bandwidth and loopback that somebody "+
			"else installed")
}

const defaultReservations = "/var/lib/cni/networks/cbr0"

// store returns the directory to free addresses in, empty for none: the flag's, or that of the
// network that the conflist names. An agent that does not install the CNI config may share its
// files with other nodes, as in a lab, and would free the addresses of their pods.
func (o podOptions) store(conflist string) string {
	switch {
	case o.grace <= 0:
		return ""
	case o.reservations != "" || conflist == "":
		return o.reservations
	}
	var list struct{ Name string }
	data, err := smallfile.Read(conflist, smallfile.MB)
	if err != nil || json.Unmarshal(data, &list) != nil ||
		list.Name != filepath.Base(list.Name) || strings.HasPrefix(list.Name, ".") {
		return defaultReservations
	}
	return filepath.Join(filepath.Dir(defaultReservations), list.Name)
}

// bootLimit is how long the reservations of an earlier boot are tried to be freed, a variable for tests. A plugin that
// hangs may hold their lock. What is left then is freed after the grace period.
var bootLimit = 10 * time.Second

// servePods starts what frees addresses and keeps the CNI plugins installed. The reservations of an
// earlier boot are freed at once, until which the lease is not written.
func servePods(ctx context.Context, group *errgroup.Group, o *options, p *parts) {
	c := &p.config
	if store := o.reservations(); store != "" {
		lease := func() []netip.Prefix {
			env, _ := subnet.ReadEnv(o.subnetFile) // without one nothing of other networks' is freed
			return env.Subnets
		}
		r := pods.New(pods.Config{Store: store, Bridge: o.bridge, Plugins: pluginPath(o), Lease: lease,
			Grace: o.pods.grace, Every: min(o.pods.grace, time.Minute), Log: c.Log,
			Event: events(c.Store), Metrics: pods.NewMetrics(p.metrics)})
		freed := make(chan struct{})
		c.Freed = freed
		group.Go(func() error {
			freeBoot(ctx, r, c, filepath.Join(store, "lock"))
			close(freed)
			return r.Run(ctx)
		})
	}
	k := &install.Keeper{Plugins: install.Plugins{From: pluginDir, To: o.pods.binDir, Replace: o.pods.replace},
		Conflist: o.cniTarget, Every: 10 * time.Second, Log: c.Log, Event: events(c.Store)}
	if o.pods.binDir != "" || o.cniSource != "" {
		group.Go(func() error { return k.Run(ctx) })
	}
}

// freeBoot frees the reservations of an earlier boot.
func freeBoot(ctx context.Context, r *pods.Reclaimer, c *agent.Config, lock string) {
	defer c.Steps.Begin("frees the addresses of an earlier boot, with " + lock)()
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	if err := r.Boot(ctx); err != nil {
		c.Log.Error("free the addresses of an earlier boot", "err", err, "lock", lock)
	}
}

// pluginPath returns where to find portmap and bandwidth, in the form of PATH.
func pluginPath(o *options) string {
	if o.pods.binDir != "" {
		return pluginDir + ":" + o.pods.binDir
	}
	return pluginDir + ":/opt/cni/bin"
}

// events returns what reports events to the cluster, nil if the store cannot.
func events(s subnet.Store) func(kind, reason, message string) {
	if r, ok := s.(subnet.Reporter); ok {
		return r.Event
	}
	return nil
}

// objectEvents is the same for other objects.
func objectEvents(s subnet.Store) func(about subnet.Object, kind, reason, message string) {
	if r, ok := s.(subnet.ObjectReporter); ok {
		return r.ObjectEvent
	}
	return nil
}
