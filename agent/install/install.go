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
// they can read.
func Rival(path string) (string, error) {
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
			if !strings.HasPrefix(e.Name(), ".") && isConfig(other) {
				return other, nil
			}
		}
	}
	return "", nil
}

// isConfig reports whether a runtime would use the file: it names a plugin.
func isConfig(path string) bool {
	data, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	var conf struct {
		Type    string
		Plugins []struct{ Type string }
	}
	return json.Unmarshal(data, &conf) == nil && (conf.Type != "" || len(conf.Plugins) > 0)
}
