//go:build soak

package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// conflistName is the guest's CNI config in the runtime's directory.
const conflistName = "10-twill.conflist"

// noteName is where the guest notes in that directory what it installed.
const noteName = "." + conflistName + ".source"

// netDir is the runtime's directory of CNI configs on this host.
func (g *guest) netDir() string { return filepath.Join(g.node.Dir(), "net.d") }

// agent is a program that is twilld with the flags by which it keeps the CNI config and the reservations of this host.
func (g *guest) agent() string {
	temp, dir := g.TempDir(), filepath.Join(labtest.Dir, "guest", "node1") // where the lab keeps the node
	path, source, netDir := filepath.Join(temp, "twilld-guest"), filepath.Join(temp, "cni-conf.json"), filepath.Join(dir, "net.d")
	g.must(os.WriteFile(source, []byte(`{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [{"type": "twill"}]}`), 0o644))
	g.must(os.WriteFile(path, fmt.Appendf(nil, `#!/bin/sh
mkdir -p %s
exec %s "$@" --cni-conf-source=%s --cni-conf-file=%s --reservations-dir=%s
`, netDir, labtest.Spec(lab.Spec{}).Programs.Agent, source, filepath.Join(netDir, conflistName),
		filepath.Join(dir, "networks", "cbr0")), 0o755))
	return path
}

// strangers are files of others in each directory that Twill reads or writes, by their path below the node's directory.
var strangers = map[string]string{
	"net.d/87-podman-bridge.conflist": `{"cniVersion": "1.0.0", "name": "podman", "plugins": [{"type": "bridge", "bridge": "cni-podman0"}]}`,
	"net.d/99-loopback.conf":          `{"cniVersion": "1.0.0", "type": "loopback"}`,
	"net.d/10-flannel.conflist.bak":   `{"name": "cbr0"}`,
	"net.d/README":                    "Files here are read in the order of their names.\n",
	"networks/cbr0/notes":             "not an address\n",
	"networks/cbr0/10.244.1.77.orig":  "somebody's copy\n",
	"networks/podman/10.88.0.5":       "another network's reservation\r\neth0",
	"subnet.env.dpkg-old":             "FLANNEL_NETWORK=10.99.0.0/16\n",
	"checkpoint.json.bak":             "{}",
}

// settleFiles writes the strangers.
func (g *guest) settleFiles() {
	for name, content := range strangers {
		path := filepath.Join(g.node.Dir(), name)
		g.must(os.MkdirAll(filepath.Dir(path), 0o755))
		g.must(os.WriteFile(path, []byte(content), 0o640))
	}
}

// files reads the strangers, and what else is in the runtime's directory, but the guest's own.
func (g *guest) files() (lines []string) {
	names := []string{}
	for name := range strangers {
		names = append(names, name)
	}
	entries, err := os.ReadDir(g.netDir())
	g.must(err)
	for _, e := range entries {
		if name := "net.d/" + e.Name(); e.Name() != conflistName && e.Name() != noteName && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		info, err := os.Lstat(filepath.Join(g.node.Dir(), name))
		if err != nil {
			lines = append(lines, err.Error())
			continue
		}
		data, err := os.ReadFile(filepath.Join(g.node.Dir(), name))
		g.must(err)
		lines = append(lines, fmt.Sprintf("%s %s %q", name, info.Mode(), data))
	}
	slices.Sort(lines)
	return lines
}

// mesh is what the installer of a mesh chains into the CNI config that a runtime uses.
const mesh = "istio-cni"

// chain adds a plugin to the guest's CNI config, as installers of meshes do.
func (g *guest) chain() {
	path := filepath.Join(g.netDir(), conflistName)
	data, err := os.ReadFile(path)
	g.must(err)
	var list map[string]any
	g.must(json.Unmarshal(data, &list))
	plugins, ok := list["plugins"].([]any)
	if !ok {
		g.Fatalf("%s has no list of plugins: %s", path, data)
	}
	list["plugins"] = append(plugins, map[string]any{"type": mesh, "log_level": "info"})
	data, err = json.MarshalIndent(list, "", "  ")
	g.must(err)
	g.must(os.WriteFile(path, data, 0o644))
}

// chained fails if what was chained is gone.
func (g *guest) chained(when string) {
	g.Helper()
	data, err := os.ReadFile(filepath.Join(g.netDir(), conflistName))
	if err != nil || !strings.Contains(string(data), mesh) {
		g.Errorf("%s the CNI config has no %s any more (%v):\n%s", when, mesh, err, data)
	}
}
