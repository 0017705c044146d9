// Package install installs the CNI plugins of the image in the container runtime's directory, and
// keeps them there.
package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/atomicfile"
	"github.com/twill-net/twill/internal/smallfile"
)

// Keeper keeps the plugins installed, and reports what stops the runtime from using them.
type Keeper struct {
	Plugins                // without To: none are installed
	Conflist string        // our conflist, such as /etc/cni/net.d/10-twill.conflist; empty: it is not checked
	Every    time.Duration // between two checks
	Log      *slog.Logger
	Event    func(kind, reason, message string) // reports to the cluster; nil: no reports

	seen    string   // the conflist of the last check
	foreign string   // the one that was reported
	left    []string // other people's plugins that were reported
	failed  string
}

// Run checks every k.Every until ctx is done. It logs errors and continues.
func (k *Keeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(k.Every)
	defer ticker.Stop()
	for {
		k.plugins()
		k.rivals()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// plugins installs again what was deleted or damaged.
func (k *Keeper) plugins() {
	var errs []error
	if k.To != "" {
		done, err := k.Install()
		errs = append(errs, err)
		if len(done.Written) > 0 {
			k.Log.Info("installed CNI plugins", "paths", done.Written)
		}
		if !slices.Equal(done.Left, k.left) && len(done.Left) > 0 {
			k.Log.Info("other CNI plugins than the image's are left alone, --cni-bin-replace replaces them",
				"paths", done.Left)
		}
		k.left = done.Left
	}
	if k.Conflist != "" {
		dir := filepath.Dir(k.Conflist)
		errs = append(errs, atomicfile.Sweep(dir), writable(dir))
	}
	err := errors.Join(errs...)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != k.failed && err != nil {
		k.Log.Error("keep what the container runtime needs installed", "err", err)
	}
	k.failed = text
}

// rivals reports another network's config that sorts before ours: runtimes use the first one only.
// It must be there in two checks, because the agent renames flannel's when it starts.
func (k *Keeper) rivals() {
	if k.Conflist == "" {
		return
	}
	rival, err := Rival(k.Conflist)
	again := rival == k.seen || rival == ""
	k.seen = rival
	if err != nil || rival == k.foreign || !again {
		return
	}
	k.foreign = rival
	if rival == "" {
		k.Log.Info("no other CNI config comes before Twill's any more")
		return
	}
	k.Log.Warn("another CNI config comes before Twill's: new pods of this node do not get Twill's network, remove it",
		"path", rival, "ours", k.Conflist)
	if k.Event != nil {
		k.Event("Warning", "ForeignCNIConfig", fmt.Sprintf(
			"%s comes before %s: new pods of this node do not get Twill's network, remove it",
			rival, filepath.Base(k.Conflist)))
	}
}

// Rival returns the config that a runtime uses instead of the conflist at path, empty if there is
// none. Runtimes use the first of *.conf, *.conflist and *.json, in the order of their names, that
// they can read. One that carries the conflist's plugin is no rival.
func Rival(path string) (string, error) {
	plugin := "twill"
	if ours, ok := readConfig(path); ok {
		plugin = ours.types()[0]
	}
	entries, err := os.ReadDir(filepath.Dir(path)) // in the order of names
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find other CNI configs: %w", err)
	}
	for _, e := range entries {
		if e.Name() >= filepath.Base(path) {
			break
		}
		switch filepath.Ext(e.Name()) {
		case ".conf", ".conflist", ".json":
			other := filepath.Join(filepath.Dir(path), e.Name())
			if c, ok := readConfig(other); ok && !strings.HasPrefix(e.Name(), ".") && !c.carries(plugin) {
				return other, nil
			}
		}
	}
	return "", nil
}

// config is a CNI config: a list of plugins, or one alone. Multus has those that it calls in it, or
// reads them where its own config says.
type config struct {
	Type      string
	Plugins   []config
	Delegates []config
}

// readConfig reports false for what no runtime would use: it names no plugin.
func readConfig(path string) (c config, ok bool) {
	data, _ := smallfile.Read(path, smallfile.MB) // what cannot be read is no JSON
	return c, json.Unmarshal(data, &c) == nil && len(c.types()) > 0
}

// types returns those of the plugins that are started.
func (c config) types() (all []string) {
	if c.Type != "" {
		all = append(all, c.Type)
	}
	for _, p := range slices.Concat(c.Plugins, c.Delegates) {
		all = append(all, p.types()...)
	}
	return all
}

// carries reports whether pods get the network of a plugin by the config of another program: a
// mesh's copy of that plugin's own with the mesh's plugin behind, or Multus.
func (c config) carries(plugin string) bool {
	multus := strings.HasPrefix(c.Type, "multus") && len(c.Delegates) == 0
	return multus || slices.Contains(c.types(), plugin)
}

// Carries reports whether pods get the network of a plugin by the CNI config at path.
func Carries(path, plugin string) bool {
	c, ok := readConfig(path)
	return ok && c.carries(plugin)
}
