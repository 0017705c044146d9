// Package facts gathers what the doctor judges: on one machine, in the network namespace of the calling thread, and
// read-only. It asks the kernel, the agent, the container runtime's config, and the firewall's tools.
package facts

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/doctor"
)

// Options say where to look. What is empty is as the running agent says, else as its checkpoint says, else the default.
type Options struct {
	Checkpoint, SubnetFile, Bridge string
	Iface                          string // of the underlay
	CNIDir, CNIFile, BinDir        string // the container runtime's
	CNICache                       string // likewise: of what its CNI plugins made
	Reservations                   string
	Kubeconfig                     string // unlike the agent's own, this one may run commands
	AskAPI                         bool   // ask the cluster's API whether it answers the agent
	Probe                          doctor.Probing
	Outside                        []netip.Addr // addresses outside of the cluster whose paths are looked up
	// LeaseFile and NetConf, if they are set, replace the checkpoint: a file of leases like that of twilld
	// --lease-file, and the network's config. Node is then the name of this node.
	LeaseFile, NetConf, Node string
	Leases                   []byte // what the file of leases holds, if it was read already
	// Twills says that the plan is Twill's, also where another agent of flannel's formats runs.
	Twills bool
}

// defaultCheckpoint is where the checkpoint of an agent that does not run is looked for.
const defaultCheckpoint = "/var/lib/twill/checkpoint.json"

// defaultSubnetFile is where flannel and Twill tell the CNI plugin of the lease.
const defaultSubnetFile = "/run/flannel/subnet.env"

// settings returns the agent's settings with what the options override, and the agent that gave them, if it runs.
func (o Options) settings() (agent.Settings, doctor.Agent, error) {
	s := agent.Settings{
		SubnetFile: defaultSubnetFile, Bridge: "cni0", BPFFS: usualBPFFS,
		Firewall: backend.FirewallConfig{Random: true, Forward: backend.ForwardOn},
	}
	asked, pid, err := agent.AskSettings()
	running := doctor.Agent{Running: err == nil, PID: pid}
	var timeout net.Error
	switch saved, notSaved := agent.ReadCheckpoint(cmp.Or(o.Checkpoint, defaultCheckpoint)); {
	case err == nil:
		s = asked
	case notSaved == nil && saved.Settings != nil:
		s = *saved.Settings
	}
	if errors.As(err, &timeout) && timeout.Timeout() {
		running = doctor.Agent{Running: true, Unresponsive: true, NotReady: err.Error()}
	}
	s.Checkpoint = cmp.Or(o.Checkpoint, s.Checkpoint, defaultCheckpoint)
	s.SubnetFile = cmp.Or(o.SubnetFile, s.SubnetFile)
	s.Bridge = cmp.Or(o.Bridge, s.Bridge)
	s.BinDir = cmp.Or(o.BinDir, s.BinDir, "/opt/cni/bin")
	s.Reservations = cmp.Or(o.Reservations, s.Reservations)
	s.Kube.Kubeconfig = cmp.Or(o.Kubeconfig, s.Kube.Kubeconfig)
	if o.Iface != "" {
		s.Choice.Names = []string{o.Iface}
	}
	s.Choice.Settled = true
	return s, running, err
}

// NodeName returns the node's name as the agent's checkpoint has it, else that of the machine.
func (o Options) NodeName() string {
	saved, _ := agent.ReadCheckpoint(cmp.Or(o.Checkpoint, defaultCheckpoint))
	machine, _ := os.Hostname()
	return cmp.Or(o.Node, saved.Node, machine)
}

// conflist returns the runtime's config directory and the name of Twill's config in it. The directory is empty if
// nobody names one.
func (o Options) conflist(s agent.Settings) (dir, name string) {
	if s.Conflist.Source != "" {
		dir, name = filepath.Split(s.Conflist.Target)
	}
	return cmp.Or(o.CNIDir, dir), cmp.Or(o.CNIFile, name, "10-twill.conflist")
}
