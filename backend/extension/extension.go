// Package extension is the backend that lets commands of the administrator carry packets: they are run when
// the agent starts and ends and when peers come and go, with flannel's environment variables.
package extension

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// Options are net-conf.json's Backend keys of flannel's extension; an empty command is not run.
type Options struct {
	PreStartupCommand   string // its output is what peers get of this node
	PostStartupCommand  string
	SubnetAddCommand    string
	SubnetRemoveCommand string
	ShutdownCommand     string
	Shell               bool // run them by "sh -c"
}

// commands are all commands by their keys, empty where none is set.
func (o Options) commands() map[string]string {
	return map[string]string{"PreStartupCommand": o.PreStartupCommand, "PostStartupCommand": o.PostStartupCommand,
		"SubnetAddCommand": o.SubnetAddCommand, "SubnetRemoveCommand": o.SubnetRemoveCommand, "ShutdownCommand": o.ShutdownCommand}
}

// Backend is extension. It is the same for the whole run of an agent: Prepare remembers what Publish says.
type Backend struct {
	networks []netip.Prefix
	options  Options

	mu   sync.Mutex
	data json.RawMessage // what PreStartupCommand wrote, as a JSON string; nil: nothing
}

// New makes the backend of net-conf.json's {"Type": "extension", …}.
func New(networks []netip.Prefix, options json.RawMessage) (backend.Backend, []string, error) {
	b := &Backend{networks: networks}
	warnings, err := backend.ParseOptions(options, &b.options)
	if b.options.Shell {
		return b, warnings, err
	}
	commands := b.options.commands()
	for _, key := range slices.Sorted(maps.Keys(commands)) {
		if strings.ContainsAny(commands[key], "\"'`|&;<>()") {
			warnings = append(
				warnings,
				fmt.Sprintf(
					`%s has a shell's syntax, and runs without one: set "Shell": true, or name a script`,
					key,
				),
			)
		}
	}
	return b, warnings, err
}

// Require implements backend.Requirer. A program that a variable names is looked for when it runs.
func (b *Backend) Require() error {
	commands := b.options.commands()
	for _, key := range slices.Sorted(maps.Keys(commands)) {
		argv := b.options.argv(commands[key], os.Environ())
		if len(argv) == 0 || commands[key] == "" || !b.options.Shell && strings.Contains(strings.Fields(commands[key])[0], "$") {
			continue
		}
		if _, err := exec.LookPath(argv[0]); err != nil {
			return fmt.Errorf("the backend extension's %s needs %s, and there is none: "+
				"a shell and usual commands are in the variant -full of Twill's image", key, argv[0])
		}
	}
	return nil
}

// MTU is the underlay's: the smallest, if there are two.
func (b *Backend) MTU(node backend.Node) int { return backend.SmallestMTU(node.Underlays) }

// Publish is the output of PreStartupCommand, for every family the same.
func (b *Backend) Publish(backend.Node, subnet.Lease, netstate.Family) (json.RawMessage, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.data), nil
}

// Desired is nothing: what the commands make is theirs.
func (b *Backend) Desired(node backend.Node, snap subnet.Snapshot) (netstate.State, []subnet.Skip) {
	_, skips := backend.Peers(b.networks, node, snap)
	return netstate.State{}, skips
}

// ExternalRoutes implements backend.ExternalRoutes.
func (*Backend) ExternalRoutes() {}
