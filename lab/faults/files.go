package faults

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twill-net/twill/netstate"
)

// fileFaults injure what the CNI plugin and the runtime read.
var fileFaults = []Fault{
	{Name: "env-deleted", Finding: "env-missing", Description: "subnet.env is deleted",
		Inject: func(_ context.Context, v *Target) error { return os.Remove(v.Node.SubnetFile()) }, Undo: restartAgent},
	{Name: "env-damaged", Finding: "env-damaged", Description: "subnet.env is cut off",
		Inject: func(_ context.Context, v *Target) error {
			return os.WriteFile(v.Node.SubnetFile(), []byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUB"), 0o644)
		}, Undo: restartAgent},
	{Name: "env-stale", Finding: "env-stale", Description: "subnet.env is of an earlier lease",
		Inject: func(_ context.Context, v *Target) error {
			earlier := "10.244.249.1/24"
			if v.Family == netstate.IPv6 {
				earlier = "fd00:244:0:f9::1/64"
			}
			return edit(v.Node.SubnetFile(), v.gateway(), earlier)
		}, Undo: restartAgent},
	{Name: "conflist-deleted", Finding: "conflist-missing", Description: "the CNI config is deleted",
		Inject: func(_ context.Context, v *Target) error { return os.Rename(v.conflist(), v.conflist()+".saved") }, Undo: restoreConflist},
	{
		Name:        "conflist-invalid",
		Finding:     "conflist-invalid",
		Description: "the CNI config is not JSON",
		Inject:      alterConflist(`"plugins"`, `plugins`),
		Undo:        restoreConflist,
	},
	{
		Name:        "conflist-other-env",
		Finding:     "conflist-subnet-file",
		Description: "the CNI config names another subnet.env",
		Inject:      alterConflist("subnet.env", "old.env"),
		Undo:        restoreConflist,
	},
	{
		Name:        "plugin-missing",
		Finding:     "plugin-missing",
		Description: "the CNI config names a plugin that is not installed",
		Inject:      alterConflist(`"plugins": [`, `"plugins": [{"type": "firewall-missing"},`),
		Undo:        restoreConflist,
	},
	{
		Name:        "conflist-shadowed",
		Finding:     "conflist-shadowed",
		Description: "another network's CNI config stands before ours",
		Inject: func(_ context.Context, v *Target) error {
			return os.WriteFile(
				v.shadow(),
				[]byte(`{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"bridge"}]}`),
				0o644,
			)
		},
		Undo: func(_ context.Context, v *Target) error { return os.Remove(v.shadow()) },
	},
	{
		Name:        "range-full",
		IPv4:        true,
		Finding:     "range-full",
		Description: "all addresses of the node are reserved",
		Inject:      reserve(254),
		Undo:        unreserve,
	},
	{
		Name:        "reservations-leaked",
		IPv4:        true,
		Finding:     "reservations-leaked",
		Description: "forty reservations of pods that are gone",
		Inject:      reserve(40),
		Undo:        unreserve,
	},
	{
		Name:        "port-taken",
		Finding:     "udp-port-taken",
		Description: "a process took the VXLAN's UDP port while the device was gone",
		Backends:    vxlanOnly,
		Inject:      takePort,
		Undo:        func(_ context.Context, v *Target) error { return v.held.Close() },
	},
	{Name: "agent-down", Finding: "agent-down", Description: "the agent does not run", Backends: written,
		Inject: func(_ context.Context, v *Target) error { return v.Node.KillAgent() }, Undo: restartAgent},
}

// restartAgent is enough where the agent writes at its start what was injured.
func restartAgent(ctx context.Context, v *Target) error { return v.Node.RestartAgent(ctx) }

func (v *Target) conflist() string { return filepath.Join(v.Node.Dir(), "10-twill.conflist") }

func (v *Target) shadow() string { return filepath.Join(v.Node.Dir(), "05-other.conflist") }

// edit replaces text in a file; text that is not there is an error, because nothing would be injured.
func edit(path, from, to string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !strings.Contains(string(data), from) {
		return fmt.Errorf("%s has no %q", path, from)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(data), from, to, 1)), 0o644)
}

// alterConflist keeps the old file beside.
func alterConflist(from, to string) func(context.Context, *Target) error {
	return func(_ context.Context, v *Target) error {
		data, err := os.ReadFile(v.conflist())
		if err != nil {
			return err
		}
		if err := os.WriteFile(v.conflist()+".saved", data, 0o644); err != nil {
			return err
		}
		return edit(v.conflist(), from, to)
	}
}

func restoreConflist(_ context.Context, v *Target) error {
	return os.Rename(v.conflist()+".saved", v.conflist())
}

// ghost is who holds the reservations that a fault makes.
const ghost = "ghost-of-a-pod"

func (v *Target) reservations() string { return filepath.Join(v.Node.Dir(), "networks", "cbr0") }

// reserve makes reservations of an hour ago for the last n addresses of the target's subnet that are free.
func reserve(n int) func(context.Context, *Target) error {
	return func(_ context.Context, v *Target) error {
		subnet := v.Subnet(v.Node)
		for host := 254; host > 254-n && host > 1; host-- {
			b := subnet.Addr().As4()
			b[3] = byte(host)
			path := filepath.Join(v.reservations(), netip.AddrFrom4(b).String())
			f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if errors.Is(err, fs.ErrExist) {
				continue
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(f, "%s-%d\r\neth0", ghost, host)
			old := time.Now().Add(-time.Hour)
			if err = errors.Join(err, f.Close(), os.Chtimes(path, old, old)); err != nil {
				return err
			}
		}
		return nil
	}
}

func unreserve(_ context.Context, v *Target) error {
	entries, err := os.ReadDir(v.reservations())
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(v.reservations(), e.Name())
		if data, readErr := os.ReadFile(path); readErr == nil && strings.HasPrefix(string(data), ghost) {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

// takePort deletes the VXLAN device and binds its port. This process holds the socket.
func takePort(ctx context.Context, v *Target) error {
	if err := run(ctx, v.Node, "ip link del %s", v.Overlay); err != nil {
		return err
	}
	return v.Node.Do(func() error {
		conn, err := net.ListenPacket("udp4", ":8472")
		v.held = conn
		return err
	})
}
