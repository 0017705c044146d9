//go:build vm

package faults

import (
	"context"
	"fmt"
	"strings"
)

// kernelFaults injure the kernel's WireGuard, which only some machines have.
var kernelFaults = []Fault{
	{
		Name:        "wg-peer-deleted",
		Finding:     "peer-missing",
		Description: "WireGuard forgets a peer",
		Backends:    []string{"wireguard"},
		Inject:      wg("peer {key} remove"),
	},
	{
		Name:        "wg-peer-altered",
		Finding:     "peer-altered",
		Description: "WireGuard has another address of a peer",
		Backends:    []string{"wireguard"},
		Inject:      wg("peer {key} endpoint 192.168.33.250:51820"),
	},
	{
		Name:        "wg-key-altered",
		Finding:     "vtep-altered",
		Description: "the device loses its private key",
		Backends:    []string{"wireguard"},
		Inject:      wg("private-key /dev/null"),
	},
}

// wg runs "wg set" on the target, with the peer's key for {key}. An empty file takes a key away (wg(8)).
func wg(words string) func(context.Context, *Target) error {
	return func(ctx context.Context, v *Target) error {
		key, err := v.Peer.Exec(ctx, "wg", "show", v.Overlay, "public-key")
		if err != nil {
			return fmt.Errorf("ask for the peer's key: %w", err)
		}
		line := strings.ReplaceAll(words, "{key}", strings.TrimSpace(key))
		return run(ctx, v.Node, "wg set %s %s", v.Overlay, line)
	}
}
