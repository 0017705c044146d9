// Package install puts the CNI plugins of the image where the container runtime looks for them, and sees that they
// stay there.
package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Plugins copies every program of the directory from to the directory to, where it is not there yet or another one,
// and returns the paths that it wrote. Each appears in one step: a runtime may start it at any moment, and a program
// that runs cannot be written to.
func Plugins(from, to string) (written []string, err error) {
	entries, err := os.ReadDir(from)
	if err != nil {
		return nil, fmt.Errorf("find the CNI plugins: %w", err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the CNI plugins: %w", err)
	}
	var errs []error
	for _, e := range entries {
		target := filepath.Join(to, e.Name())
		did, err := program(filepath.Join(from, e.Name()), target)
		if err != nil {
			errs = append(errs, fmt.Errorf("install the CNI plugin %s: %w", e.Name(), err))
		}
		if did {
			written = append(written, target)
		}
	}
	return written, errors.Join(errs...)
}

func program(from, to string) (bool, error) {
	want, err := os.ReadFile(from)
	if err != nil {
		return false, err
	}
	if info, err := os.Stat(to); err == nil && info.Mode().Perm() == 0o755 && info.Size() == int64(len(want)) {
		if have, err := os.ReadFile(to); err == nil && bytes.Equal(have, want) {
			return false, nil
		}
	}
	return true, replace(to, want)
}

// replace writes a program so that it is there whole, or as it was before, also after a power loss.
func replace(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".twill-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o755), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Keeper keeps the plugins installed and looks for what keeps the runtime from using them.
type Keeper struct {
	From, To string        // the image's plugins and the runtime's directory; no To: none are kept
	Conflist string        // where ours is, such as /etc/cni/net.d/10-twill.conflist; empty: not looked for
	Every    time.Duration // between two looks
	Log      *slog.Logger
	Event    func(kind, reason, message string) // tells the cluster; nil: nobody is told

	seen    string // the conflist of the last look
	foreign string // the one that was reported
	failed  string
}

// Run looks every k.Every until ctx is done. Errors are logged and end nothing.
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

// plugins installs again what was deleted or altered.
func (k *Keeper) plugins() {
	if k.To == "" {
		return
	}
	written, err := Plugins(k.From, k.To)
	if len(written) > 0 {
		k.Log.Info("installed CNI plugins", "paths", written)
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != k.failed && err != nil {
		k.Log.Error("keep the CNI plugins installed", "err", err)
	}
	k.failed = text
}

// rivals reports another network's config that sorts before ours: runtimes take the first and never ours. It has to
// be there at two looks, because the agent renames flannel's when it starts.
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
		k.Event("Warning", "ForeignCNIConfig", fmt.Sprintf("%s comes before %s: new pods of this node do not get Twill's network, remove it",
			rival, filepath.Base(k.Conflist)))
	}
}

// Rival is the config that a runtime takes before the conflist at path, empty if there is none. Runtimes take the
// first of *.conf, *.conflist and *.json in the order of their names that they can read.
func Rival(path string) (string, error) {
	entries, err := os.ReadDir(filepath.Dir(path)) // in the order of names
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for other CNI configs: %w", err)
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

// isConfig says whether a runtime would take the file: it names a plugin.
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
