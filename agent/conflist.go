package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/twill-net/twill/agent/keptfile"
	"github.com/twill-net/twill/internal/jsonobject"
	"github.com/twill-net/twill/internal/smallfile"
)

// Conflist is the CNI config that makes a runtime start pods: the agent writes it when the data
// path works, and not before, since its presence is what makes a node Ready.
type Conflist struct {
	Source string // what to write; empty: nothing is written
	Target string // in the runtime's directory, such as /etc/cni/net.d/10-twill.conflist
}

// mostConflist bounds what is read of a CNI config, in bytes.
const mostConflist = smallfile.MB

// flannelConflist is what flannel's manifest installs. It sorts before ours, and runtimes take the first.
const flannelConflist = "10-flannel.conflist"

// replaced is appended to the name of flannel's conflist, so that runtimes do not see it any more
// and people do.
const replaced = ".replaced-by-twill"

// Installed returns the path of the file that says what the agent last installed. Runtimes do not read it for its name.
func (c Conflist) Installed() string {
	return filepath.Join(filepath.Dir(c.Target), "."+filepath.Base(c.Target)+".source")
}

// write brings the source's content into the target, where files keeps it beside what others have added, and takes
// flannel's out of the way.
func (c Conflist) write(files *keptfile.Keeper) error {
	if c.Source == "" {
		return nil
	}
	want, err := smallfile.Read(c.Source, mostConflist)
	if err != nil {
		return fmt.Errorf("read the CNI config: %w", err)
	}
	if _, err := jsonobject.Parse(want); err != nil {
		return fmt.Errorf("the CNI config %s: want a conflist with a list of plugins: %w", c.Source, err)
	}
	if err := os.MkdirAll(filepath.Dir(c.Target), 0o755); err != nil {
		return fmt.Errorf("make the directory of the CNI config: %w", err)
	}
	earlier, _ := smallfile.ReadUnlinked(c.Installed(), mostConflist) // without it, what the source no longer has stays
	merge := func(content, have []byte) ([]byte, bool) { return mergeLists(earlier, content, have) }
	source := func() ([]byte, error) { return want, nil }
	if err := files.Share(c.Target, 0o644, source, merge); err != nil {
		return fmt.Errorf("write the CNI config: %w", err)
	}
	if err := files.Write(c.Installed(), 0o644, source); err != nil {
		return fmt.Errorf("note which CNI config is installed: %w", err)
	}
	return c.retireFlannel()
}

// usable reports whether a config is installed that a runtime can read.
func (c Conflist) usable() bool {
	data, err := smallfile.Read(c.Target, mostConflist)
	return err == nil && json.Valid(data)
}

// retireFlannel renames flannel's conflist, if it is flannel's.
func (c Conflist) retireFlannel() error {
	path := filepath.Join(filepath.Dir(c.Target), flannelConflist)
	data, err := smallfile.Read(path, mostConflist)
	if errors.Is(err, fs.ErrNotExist) || path == c.Target {
		return nil
	}
	if err != nil {
		return err
	}
	var list struct{ Plugins []struct{ Type string } }
	if json.Unmarshal(data, &list) != nil || len(list.Plugins) == 0 || list.Plugins[0].Type != "flannel" {
		return nil
	}
	return os.Rename(path, path+replaced)
}
