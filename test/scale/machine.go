package scale

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/twill-net/twill/internal/host"
)

// Machine is a network namespace with one interface to the underlay, u0, in which the agent of node 0 runs. It reaches
// the cluster's API server through a forwarder that counts.
type Machine struct {
	host.Host
	cluster  *Cluster
	dir      string
	setting  Setting
	listener net.Listener
	received atomic.Int64
}

// NewMachine makes the namespace; what a crashed run left of its name goes first. Close removes it.
func (c *Cluster) NewMachine(ctx context.Context, name string) (*Machine, error) {
	m := &Machine{Host: host.Host{Name: name}, cluster: c, dir: filepath.Join(c.dir, name)}
	if err := m.endLeftover(); err != nil {
		return nil, err
	}
	if err := m.Delete(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return nil, err
	}
	if err := m.Create(); err != nil {
		return nil, err
	}
	if err := m.wire(ctx); err != nil {
		_ = m.Delete()
		return nil, err
	}
	return m, m.Configure(Setting{})
}

// Configure writes the network config of agents that are started from now on.
func (m *Machine) Configure(s Setting) error {
	data, err := m.cluster.netConf(s)
	if err != nil {
		return err
	}
	m.setting = s
	return os.WriteFile(filepath.Join(m.dir, "net-conf.json"), data, 0o644)
}

// wire makes the underlay and the way to the API server.
func (m *Machine) wire(ctx context.Context) error {
	commands := []string{"ip link add u0 type veth peer name u1", "ip link set u0 up", "ip link set u1 up",
		"ip addr add " + Underlay(0).String() + "/12 dev u0", "ip route add default dev u0"}
	if m.cluster.dual {
		commands = append(
			commands,
			"ip addr add "+underlayV6(0).String()+"/64 dev u0 nodad",
			"ip -6 route add default dev u0",
		)
	}
	for _, command := range commands {
		if _, err := m.Exec(ctx, strings.Fields(command)...); err != nil {
			return err
		}
	}
	server := strings.TrimPrefix(m.cluster.server.URL(), "https://")
	err := m.Do(func() (err error) { m.listener, err = net.Listen("tcp", server); return err })
	if err != nil {
		return fmt.Errorf("listen for the agent on %s in %s: %w", server, m.Name, err)
	}
	go m.forward(server)
	return nil
}

// forward carries connections until the listener is closed.
func (m *Machine) forward(server string) {
	for {
		agent, err := m.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer agent.Close()
			api, err := net.Dial("tcp", server)
			if err != nil {
				return
			}
			defer api.Close()
			go func() { _, _ = io.Copy(api, agent); api.Close() }()
			_, _ = io.Copy(counter{agent, &m.received}, api)
		}()
	}
}

// counter hides the connection's ReadFrom, which would count only at the end.
type counter struct {
	w     io.Writer
	total *atomic.Int64
}

func (c counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.total.Add(int64(n))
	return n, err
}

// Received is how many bytes the API server sent to the machine, TLS included.
func (m *Machine) Received() int64 { return m.received.Load() }

// Reset gives the machine a kernel without any object of the agent's, and forgets the agent's files. The agent must
// have ended.
func (m *Machine) Reset(ctx context.Context) error {
	if _, err := m.Exec(ctx, "ip", "link", "del", "flannel.1"); err != nil &&
		!strings.Contains(err.Error(), "Cannot find device") {
		return err
	}
	_, _ = m.Exec(ctx, "ip", "link", "del", "flannel-v6.1") // not in every cluster
	return os.RemoveAll(m.checkpoint())
}

func (m *Machine) checkpoint() string { return filepath.Join(m.dir, "checkpoint.json") }

// Close removes the namespace. Processes in it must have ended.
func (m *Machine) Close() error {
	m.listener.Close()
	return m.Delete()
}
