// Package extension is the backend that lets commands of the administrator carry packets: they are run when
// the agent starts and ends and when peers come and go, with flannel's environment variables.
package extension

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
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

// Require implements backend.Requirer.
func (b *Backend) Require() error {
	if _, err := exec.LookPath("sh"); b.options.Shell && err != nil {
		return errors.New(
			`the backend extension with "Shell": true needs sh, and there is none (Twill's image has no shell): ` +
				"use an image that has one, or commands that need none",
		)
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
