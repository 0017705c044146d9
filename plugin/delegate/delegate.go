// Package delegate runs upstream's portmap and bandwidth for the pods that need them, and for no others. They
// are commands and not libraries, and starting one costs more than a whole ADD.
package delegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/internal/smallfile"
	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/ipam"
)

// Plugin is portmap or bandwidth with its network config, without prevResult.
type Plugin struct {
	Type string
	Conf map[string]json.RawMessage
}

// Pod is the pod that plugins are run for, as they get it in their environment.
type Pod struct {
	Owner ipam.Owner
	Store ipam.Store // where the record of the pod is
	Netns string     // CNI_NETNS
	Path  string     // CNI_PATH
	Args  string     // CNI_ARGS
}

// record is the file that says which plugins were run for a pod, so that what they did is undone even if the
// config does not name them any more. It is written before the first one is run.
type record struct {
	ipam.Owner
	Addons []Plugin
}

// write makes the file whole or not at all. Nobody else writes the record of this owner.
func (r record) write(path string) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(path+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("note which plugins are run for the pod: %w", err)
	}
	return nil
}

// readRecord returns the plugins in a record, none where there is no record. What cannot be read any more (a
// power loss can cut it short) is of an earlier boot, and so is what the plugins did. Other programs than the
// two are never started.
func readRecord(path string) ([]Plugin, error) {
	data, err := smallfile.ReadUnlinked(path, smallfile.MB)
	var r record
	if err != nil || json.Unmarshal(data, &r) != nil {
		return nil, ipam.Unindexed(err)
	}
	return slices.DeleteFunc(r.Addons, func(p Plugin) bool { return p.Type != "portmap" && p.Type != "bandwidth" }), nil
}

const lockName = "addons.lock" // beside the records

// takeTurn waits until nobody else runs plugins for a pod of the store. portmap fails where another one makes
// the chains that all pods share between its look for them and its making them.
func (p Pod) takeTurn(ctx context.Context) (io.Closer, error) {
	path := filepath.Join(filepath.Dir(p.Store.Record(p.Owner)), lockName)
	ctx, cancel := context.WithTimeout(ctx, TurnTimeout)
	defer cancel()
	turn, err := ipam.Lock(ctx, path)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil {
		err = cnierr.New(types.ErrTryAgainLater, "the host ports of other pods were set up or taken down for %s: "+
			"look for a portmap that hangs, with %s open", TurnTimeout, path)
	}
	return turn, err
}

// Add runs ADD of the plugins, each with the result of the one before, and returns the last one's. When one
// fails, it undoes what they did.
func (p Pod) Add(ctx context.Context, plugins []Plugin, result json.RawMessage) (json.RawMessage, error) {
	for _, plugin := range plugins {
		if _, err := p.find(plugin.Type); err != nil {
			return nil, err
		}
	}
	result, err := p.add(ctx, plugins, result)
	if err != nil {
		return nil, cnierr.Join(err, p.Del(context.Background(), nil))
	}
	return result, nil
}

func (p Pod) add(ctx context.Context, plugins []Plugin, result json.RawMessage) (json.RawMessage, error) {
	turn, err := p.takeTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer turn.Close()
	if err := (record{p.Owner, plugins}).write(p.Store.Record(p.Owner)); err != nil {
		return nil, err
	}
	for _, plugin := range plugins {
		if result, err = p.run(ctx, "ADD", plugin, result); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// Del undoes what the plugins in the pod's record did, and what configured ones may have done. The addresses
// of a pod must not be given to another before: its host ports lead to them.
func (p Pod) Del(ctx context.Context, configured []Plugin) error {
	file := p.Store.Record(p.Owner)
	plugins, err := readRecord(file)
	if err != nil {
		return err
	}
	for _, c := range configured {
		if !slices.ContainsFunc(plugins, func(p Plugin) bool { return p.Type == c.Type }) {
			plugins = append(plugins, c)
		}
	}
	if err := p.del(ctx, plugins); err != nil {
		return err
	}
	return errors.Join(ipam.Remove(file), ipam.Remove(file+".new"))
}

// del runs DEL of the plugins, the last one first; when one fails, the others are run all the same.
func (p Pod) del(ctx context.Context, plugins []Plugin) error {
	if len(plugins) == 0 {
		return nil
	}
	turn, err := p.takeTurn(ctx)
	if err != nil {
		return err
	}
	defer turn.Close()
	var errs []error
	for _, plugin := range slices.Backward(plugins) {
		if plugin.Type == "bandwidth" {
			delete(plugin.Conf, "runtimeConfig") // limits that it refused at ADD it would refuse again
		}
		_, err := p.run(ctx, "DEL", plugin, nil)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Check asks the plugins whether all is as they left it.
func (p Pod) Check(ctx context.Context, plugins []Plugin, result json.RawMessage) error {
	for _, plugin := range plugins {
		if _, err := p.run(ctx, "CHECK", plugin, result); err != nil {
			return err
		}
	}
	return nil
}

func (p Pod) find(program string) (string, error) {
	for _, dir := range filepath.SplitList(p.Path) {
		path := filepath.Join(dir, program)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", cnierr.New(types.ErrTryAgainLater, "the plugin %s is missing in CNI_PATH %s: want it there, "+
		"for the pods with host ports or a bandwidth limit", program, p.Path)
}

// run executes a plugin and returns what it printed.
func (p Pod) run(ctx context.Context, command string, plugin Plugin, prev json.RawMessage) (json.RawMessage, error) {
	path, err := p.find(plugin.Type)
	if err != nil {
		return nil, err
	}
	conf := map[string]json.RawMessage{}
	maps.Copy(conf, plugin.Conf)
	if prev != nil {
		conf["prevResult"] = prev
	}
	stdin, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	c := exec.Command(path)
	c.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "CNI_") }),
		"CNI_COMMAND="+command, "CNI_CONTAINERID="+p.Owner.Container, "CNI_IFNAME="+p.Owner.Dev,
		"CNI_NETNS="+p.Netns, "CNI_PATH="+p.Path, "CNI_ARGS="+p.Args)
	c.Stdin = bytes.NewReader(stdin)
	stdout, stderr, err := runBounded(ctx, c)
	if err == nil {
		return stdout, nil
	}
	name := plugin.Type + " " + command
	if errors.Is(err, errTimeout) {
		return nil, cnierr.New(types.ErrTryAgainLater, "%s: %v: look for what holds /run/xtables.lock", name, err)
	}
	var said types.Error
	if json.Unmarshal(stdout, &said) == nil && said.Code != 0 {
		return nil, types.NewError(said.Code, name+": "+said.Msg, said.Details)
	}
	return nil, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(append(stderr, stdout...)))
}
