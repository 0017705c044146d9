package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// addon is an upstream plugin (portmap, bandwidth) that is run for the pods that need it, and for no others. They
// are commands and not libraries, and starting one costs more than a whole ADD.
type addon struct {
	Type string
	Conf map[string]json.RawMessage // its network config without prevResult
}

// record is the file that says which addons were run for an owner, so that what they did is taken back even if
// the config does not name them any more. It is written before the first one is run.
type record struct {
	Container, Dev string
	Addons         []addon
}

func (s *store) recordPath(o owner) string {
	return filepath.Join(s.dir, indexDir, indexName(o)+"addons")
}

const addonsLock = "addons.lock" // in a store's index

// oneAtATime waits until nobody else runs addons for a pod of the store in whose index file is. portmap fails where
// another one makes the chains that all pods share between its look for them and its making them.
func oneAtATime(ctx context.Context, file string) (io.Closer, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	lock := filepath.Join(filepath.Dir(file), addonsLock)
	ctx, cancel := context.WithTimeout(ctx, turnTime)
	defer cancel()
	turn, err := lockFile(ctx, lock)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil {
		err = failure(types.ErrTryAgainLater, "the host ports of other pods were set up or taken down for %s: "+
			"look for a portmap that hangs, with %s open", turnTime, lock)
	}
	return turn, err
}

// write makes the file whole or not at all. Nobody else writes the record of this owner.
func (r record) write(path string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	temp := path + ".new"
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return errors.Join(err, absent(os.Remove(temp)))
	}
	return os.Rename(temp, path)
}

// readRecord is the zero record where there is none. What cannot be read any more (a power loss can cut it short)
// is of an earlier boot, and so is what the addons did. Other programs than the two are never started.
func readRecord(path string) (record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return record{}, absent(err)
	}
	var r record
	if json.Unmarshal(data, &r) != nil {
		return record{}, nil
	}
	r.Addons = slices.DeleteFunc(r.Addons, func(a addon) bool { return a.Type != "portmap" && a.Type != "bandwidth" })
	return r, nil
}

// caller is what a plugin is told in the environment.
type caller struct {
	owner       owner
	netns, path string // CNI_NETNS and CNI_PATH
	args        string // CNI_ARGS
}

// run executes the addon and returns what it printed.
func (a addon) run(ctx context.Context, command string, by caller, prev json.RawMessage) ([]byte, error) {
	binary, err := by.find(a.Type)
	if err != nil {
		return nil, err
	}
	conf := map[string]json.RawMessage{}
	for k, v := range a.Conf {
		conf[k] = v
	}
	if prev != nil {
		conf["prevResult"] = prev
	}
	c := exec.Command(binary)
	c.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "CNI_") }),
		"CNI_COMMAND="+command, "CNI_CONTAINERID="+by.owner.container, "CNI_IFNAME="+by.owner.dev,
		"CNI_NETNS="+by.netns, "CNI_PATH="+by.path, "CNI_ARGS="+by.args)
	c.Stdin = bytes.NewReader(quote(conf))
	stdout, stderr, err := runBounded(ctx, c)
	if err != nil {
		return nil, a.failed(command, err, stdout, stderr)
	}
	return stdout, nil
}

// failed is the error of an addon with its own words and code, if it gave any.
func (a addon) failed(command string, err error, stdout, stderr []byte) error {
	if errors.Is(err, errStuck) {
		return failure(types.ErrTryAgainLater, "%s %s: %v: look for what holds /run/xtables.lock", a.Type, command, err)
	}
	var said types.Error
	if json.Unmarshal(stdout, &said) == nil && said.Code != 0 {
		return types.NewError(said.Code, fmt.Sprintf("%s %s: %s", a.Type, command, said.Msg), said.Details)
	}
	return fmt.Errorf("%s %s: %w: %s", a.Type, command, err, bytes.TrimSpace(append(stderr, stdout...)))
}

func (by caller) find(kind string) (string, error) {
	for _, dir := range filepath.SplitList(by.path) {
		path := filepath.Join(dir, kind)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", failure(types.ErrTryAgainLater, "the plugin %s is missing in CNI_PATH %s: want it there, "+
		"for the pods with host ports or a bandwidth limit", kind, by.path)
}

// addAddons runs the addons of this pod; each gets the result of the one before.
func (a *adding) addAddons(ctx context.Context) error {
	all := a.addons()
	if len(all) == 0 {
		return nil
	}
	by := caller{a.owner, a.pod.path, a.cniPath, a.cniArgs}
	for _, add := range all {
		if _, err := by.find(add.Type); err != nil {
			return err
		}
	}
	file := (&store{dir: a.storeDir()}).recordPath(a.owner)
	if err := a.runAddons(ctx, file, by, all); err != nil {
		return withRollback(err, dropAddons(context.Background(), file, by, nil))
	}
	return nil
}

func (a *adding) runAddons(ctx context.Context, file string, by caller, all []addon) error {
	turn, err := oneAtATime(ctx, file)
	if err != nil {
		return err
	}
	defer turn.Close()
	r := record{a.owner.container, a.owner.dev, all}
	if err := r.write(file); err != nil {
		return fmt.Errorf("note which plugins are run for the pod: %w", err)
	}
	for _, add := range all {
		prev, err := a.printable()
		if err != nil {
			return err
		}
		out, err := add.run(ctx, "ADD", by, prev)
		if err == nil {
			err = a.takeResult(out)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dropAddons takes back what the addons in the file did, and what configured ones may have done. The addresses of
// a pod must not be given to another before: its host ports lead to them.
func dropAddons(ctx context.Context, file string, by caller, configured []addon) error {
	r, err := readRecord(file)
	if err != nil {
		return err
	}
	all := r.Addons
	for _, c := range configured {
		if !slices.ContainsFunc(all, func(a addon) bool { return a.Type == c.Type }) {
			all = append(all, c)
		}
	}
	if len(all) > 0 {
		if err := runBackwards(ctx, file, by, all); err != nil {
			return err
		}
	}
	return errors.Join(absent(os.Remove(file)), absent(os.Remove(file+".new")))
}

// runBackwards has every addon undo its part, the last one first; one that fails does not keep the others from it.
func runBackwards(ctx context.Context, file string, by caller, all []addon) error {
	turn, err := oneAtATime(ctx, file)
	if err != nil {
		return err
	}
	defer turn.Close()
	var errs []error
	for _, a := range slices.Backward(all) {
		if a.Type == "bandwidth" {
			delete(a.Conf, "runtimeConfig") // limits that it refused at ADD it would refuse again
		}
		_, err := a.run(ctx, "DEL", by, nil)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkAddons asks the addons of this pod whether all is as they left it.
func (c *config) checkAddons(ctx context.Context, by caller) error {
	for _, a := range c.addons() {
		if _, err := a.run(ctx, "CHECK", by, c.prevResult); err != nil {
			return err
		}
	}
	return nil
}
