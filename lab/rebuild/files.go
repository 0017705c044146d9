package rebuild

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/subnet"
)

// damaged stands for a file that could not be read.
const damaged = "{"

// setFiles writes what the CNI plugin, the runtime and the agent read of the node, as far as the report says what they read.
func (p *patient) setFiles() error {
	err := errors.Join(p.setEnv(), p.setConfigs(), p.setReservations())
	if p.facts.Agent.Running {
		return err
	}
	return errors.Join(err, p.setCheckpoint())
}

// setEnv writes subnet.env. That it is of an earlier boot stays so.
func (p *patient) setEnv() error {
	seen, path := p.facts.Env, p.SubnetFile()
	have, err := p.Env()
	switch {
	case seen.Missing:
		return remove(path)
	case seen.Error != "":
		return os.WriteFile(path, []byte(damaged), 0o644)
	case seen.Hidden || err != nil:
		return err
	}
	want := seen.Env
	want.NodeUID = have.NodeUID
	if want.BootID == seen.Boot {
		want.BootID = have.BootID
	}
	text := p.names.replace(want.Format())
	if string(text) == string(have.Format()) {
		return nil
	}
	return os.WriteFile(path, text, 0o644)
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

var (
	configName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._-]{0,60}\.(conf|conflist)$`)
	pluginName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]{0,30}$`)
)

// conflist is the lab's name of Twill's CNI config.
const conflist = "10-twill.conflist"

// setConfigs writes the CNI configs: Twill's with the plugins that it had, and for others one that has their plugins.
func (p *patient) setConfigs() error {
	if p.facts.CNI.Dir == "" {
		return nil
	}
	var errs []error
	found := false
	for _, f := range p.facts.CNI.Files {
		switch {
		case f.Name == p.facts.CNI.Ours:
			found = true
			errs = append(errs, p.setConflist(f))
		case configName.MatchString(f.Name) && f.Name != conflist && !f.Hidden:
			errs = append(errs, os.WriteFile(filepath.Join(p.Dir(), f.Name), otherConfig(f), 0o644))
		}
	}
	if !found {
		errs = append(errs, remove(filepath.Join(p.Dir(), conflist)))
	}
	return errors.Join(errs...)
}

func otherConfig(f doctor.ConfFile) []byte {
	type plugin struct {
		Type string `json:"type"`
	}
	plugins := []plugin{}
	for _, name := range f.Plugins {
		if pluginName.MatchString(name) {
			plugins = append(plugins, plugin{name})
		}
	}
	data, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "other", "plugins": plugins})
	if err != nil || f.Error != "" {
		return []byte(damaged)
	}
	return data
}

// setConflist changes the lab's own config where the report's is another.
func (p *patient) setConflist(f doctor.ConfFile) error {
	path := filepath.Join(p.Dir(), conflist)
	if f.Error != "" {
		return os.WriteFile(path, []byte(damaged), 0o644)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	plugins, _ := config["plugins"].([]any)
	have := map[string]any{}
	for _, plugin := range plugins {
		if plugin, ok := plugin.(map[string]any); ok {
			if name, ok := plugin["type"].(string); ok {
				have[name] = plugin
			}
			if file, ok := plugin["subnetFile"].(string); ok && filepath.Base(f.SubnetFile) != filepath.Base(p.facts.Env.Path) {
				plugin["subnetFile"] = file + ".other"
			}
		}
	}
	var want []any
	for _, name := range f.Plugins {
		switch plugin, ok := have[name]; {
		case ok:
			want = append(want, plugin)
		case pluginName.MatchString(name) && !p.facts.CNI.Binaries[name]:
			want = append(want, map[string]any{"type": name}) // it was not installed, and is not here
		default:
			p.leave("CNI plugin %s", name)
		}
	}
	config["plugins"] = want
	if data, err = json.MarshalIndent(config, "", "  "); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// setReservations reserves addresses that no pod has, as long as ago as makes them leaked.
func (p *patient) setReservations() error {
	dir := filepath.Join(p.Dir(), "networks", "cbr0")
	for _, text := range p.facts.Reservations.Leaked {
		text, _, _ = strings.Cut(text, " ")
		addr, err := netip.ParseAddr(string(p.names.replace([]byte(text))))
		if err != nil || !slices.ContainsFunc(p.Subnets(), func(s netip.Prefix) bool { return s.Contains(addr) }) {
			continue
		}
		path, old := filepath.Join(dir, addr.String()), time.Now().Add(-time.Hour)
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(f, "gone-%s\r\neth0", strings.NewReplacer(".", "-", ":", "-").Replace(addr.String()))
		if err = errors.Join(err, f.Close(), os.Chtimes(path, old, old)); err != nil {
			return err
		}
	}
	return nil
}

// setCheckpoint gives a node without an agent the leases that its agent knew last.
func (p *patient) setCheckpoint() error {
	data, err := os.ReadFile(p.CheckpointFile())
	if err != nil {
		return err
	}
	var file map[string]json.RawMessage
	if err := json.Unmarshal(data, &file); err != nil {
		return fmt.Errorf("read %s: %w", p.CheckpointFile(), err)
	}
	type skip struct {
		Node   string
		Code   subnet.Code
		Detail string `json:"Reason"`
	}
	snap := p.facts.Lease.Snapshot
	local, peers := snap.Local, slices.Clone(snap.Peers)
	for i := range peers {
		peers[i] = p.lease(peers[i])
	}
	local = p.lease(local)
	var skips []skip
	for _, s := range snap.Skips {
		skips = append(skips, skip(s))
	}
	for key, value := range map[string]any{"Local": local, "Peers": peers, "Skips": skips} {
		if file[key], err = json.Marshal(value); err != nil {
			return err
		}
	}
	delete(file, "Claims")
	if data, err = json.Marshal(file); err != nil {
		return err
	}
	return os.WriteFile(p.CheckpointFile(), data, 0o600)
}

// lease is a lease of the report with the lab's names.
func (p *patient) lease(l subnet.Lease) subnet.Lease {
	for i, node := range p.nodes() {
		if names := p.lab.Spec().NodeNames(); node.Node == l.Node && i < len(names) {
			l.Node = names[i]
			break
		}
	}
	l.Stacks = slices.Clone(l.Stacks)
	for i, s := range l.Stacks {
		if addr, err := netip.ParseAddr(string(p.names.replace([]byte(s.Underlay.String())))); err == nil {
			l.Stacks[i].Underlay = addr
		}
		if prefix, err := netip.ParsePrefix(string(p.names.replace([]byte(s.Subnet.String())))); err == nil {
			l.Stacks[i].Subnet = prefix
		}
		var data map[string]any
		if json.Unmarshal(s.Data, &data) != nil {
			continue
		}
		for key, value := range data {
			if text, ok := value.(string); ok && p.names[text] != "" {
				data[key] = p.names[text]
			}
		}
		if text, err := json.Marshal(data); err == nil {
			l.Stacks[i].Data = text
		}
	}
	return l
}
