package daemon

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/internal/causes"
	"github.com/twill-net/twill/internal/filewatch"
	"github.com/twill-net/twill/internal/jsonobject"
)

// netConf compares the file of the network config with what the agent runs with, which was read when it started.
type netConf struct {
	path     string
	clusters []netip.Prefix
	running  []byte
	log      *slog.Logger
	event    func(kind, reason, message string) // nil: there is nobody to tell
	causes   causes.Log
	said     string // what was said last; empty: the file is what the agent runs with
}

// netConfEvery is how often the file is read even if nothing tells of a change.
const netConfEvery = time.Minute

// watchNetConf says when the file is no longer what the agent runs with. An agent that takes its config from etcd has no file.
func watchNetConf(ctx context.Context, group *errgroup.Group, o *options, p *parts) {
	if !o.kubeSubnetMgr && o.leaseFile == "" {
		return
	}
	n := netConf{path: o.netConfigs, clusters: o.clusters, running: p.netConf, log: p.config.Log, event: events(p.store.Store)}
	group.Go(func() error {
		filewatch.Config(ctx, n.path, func() time.Duration { return netConfEvery }, func(err error) {
			n.causes.Error(n.log, "watch the network config, which is read once a minute only", err)
		}, n.compare)
		return nil
	})
}

func (n *netConf) compare() {
	says := n.differs()
	if says == n.said {
		return
	}
	n.said = says
	if says == "" {
		n.log.Info("the network config is what this agent runs with again", "path", n.path)
		return
	}
	n.log.Warn("the network config is not what this agent runs with", "path", n.path, "reason", says)
	if n.event != nil {
		n.event("Warning", "NetConfChanged", says)
	}
}

// differs says how the file differs from what the agent runs with; empty: it does not.
func (n *netConf) differs() string {
	now, err := configFile(n.path)
	if err == nil {
		_, _, err = registry.NewKept(now, n.clusters...)
	}
	if err != nil {
		return "an agent that starts now cannot: " + err.Error()
	}
	if keys := differentKeys(n.running, now.Raw); len(keys) > 0 {
		return n.path + ": this agent still runs with the earlier " + strings.Join(keys, ", ") + ": restart it to use the new"
	}
	return ""
}

// differentKeys returns the keys of two configs whose values differ, or which one of them alone has.
func differentKeys(a, b []byte) (keys []string) {
	old, _ := jsonobject.Parse(a) // both were parsed before
	now, _ := jsonobject.Parse(b)
	for _, key := range append(old.Rest(), now.Rest()...) {
		if !reflect.DeepEqual(decoded(old.Take(key)), decoded(now.Take(key))) {
			keys = append(keys, key)
		}
	}
	return keys
}

// decoded returns a JSON value, however it is written; nil: there is none.
func decoded(raw json.RawMessage) (v any) {
	_ = json.Unmarshal(raw, &v) // it was parsed before
	return v
}
