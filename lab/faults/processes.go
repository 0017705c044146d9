package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// processFaults are programs on the node that meddle with the network. What is started is a shell under that
// name, which does nothing: the doctor warns of what such a program would do.
var processFaults = []Fault{
	{
		Name:        "flannel-runs",
		Finding:     "second-agent",
		Description: "a flanneld runs beside twilld",
		KeepAgent:   true,
		Inject:      impostor("flanneld"),
		Undo:        dismiss,
	},
	{
		Name:        "network-manager",
		Finding:     "device-manager",
		Description: "NetworkManager runs, and was not told which devices are ours",
		KeepAgent:   true,
		Inject:      impostor("NetworkManager"),
		Undo:        dismiss,
	},
	{
		Name:        "networkd",
		Finding:     "device-manager",
		Description: "systemd-networkd runs, which deletes the routes of others when it starts",
		KeepAgent:   true,
		Inject:      impostor("systemd-networkd"),
		Undo:        dismiss,
	},
	{
		Name:        "kube-proxy-cidr",
		Finding:     "kube-proxy-cidr",
		Description: "kube-proxy was told another cluster CIDR",
		KeepAgent:   true,
		Inject:      impostor("kube-proxy", "--cluster-cidr=10.99.0.0/16"),
		Undo:        dismiss,
	},
}

// impostor starts a shell under another name, which waits for the end of its input: it ends with this process too.
func impostor(name string, args ...string) func(context.Context, *Target) error {
	return func(_ context.Context, v *Target) error {
		shell, err := os.ReadFile("/bin/sh")
		if err != nil {
			return fmt.Errorf("copy the shell: %w", err)
		}
		path := filepath.Join(v.Node.Dir(), name)
		if err := os.WriteFile(path, shell, 0o755); err != nil {
			return fmt.Errorf("copy the shell: %w", err)
		}
		cmd := exec.Command(path, append([]string{"-c", "read line"}, args...)...)
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		v.held = actor{cmd, in}
		return v.Node.Do(cmd.Start)
	}
}

// actor is a process that plays another.
type actor struct {
	*exec.Cmd
	in io.Closer
}

// Close ends it.
func (a actor) Close() error {
	err := a.in.Close()
	_ = a.Wait() // the shell says 1 at the end of its input
	return errors.Join(err, os.Remove(a.Path))
}

func dismiss(_ context.Context, v *Target) error { return v.held.Close() }
