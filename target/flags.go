package target

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/twill-net/twill/doctor/facts"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/lab"
)

// Flags say what is looked at. They are the only place that knows which kind of Target that is.
type Flags struct {
	version string // of this program
	remote  bool   // ask the nodes of a cluster
	lab     string // ask the nodes of this lab
	cluster Cluster
	files   facts.Options // where the files of a node are; empty: as it says itself
	bpffs   string
}

// Register adds the flags that all commands have. The program runs as kubectl's plugin, or for itself.
func (f *Flags) Register(fs *pflag.FlagSet, version string, isPlugin bool) {
	f.version = version
	o := &f.files
	const same = "twilld's; empty: as for --checkpoint-file"
	fs.BoolVar(&f.remote, "cluster", isPlugin,
		"ask the nodes of a cluster, through kubectl exec into the agents' pods")
	fs.StringVar(&f.cluster.Context, "context", "", "kubectl's, with --cluster")
	fs.StringVar(&f.cluster.Kubeconfig, "kubeconfig", "", "kubectl's, with --cluster")
	fs.StringVarP(&f.cluster.Namespace, "namespace", "n", AgentNamespace,
		"the namespace of the agents' DaemonSet, with --cluster")
	fs.StringVar(&f.lab, "lab", "", "look at a node of this lab, which is the argument, instead of this machine")
	fs.StringVar(&o.Checkpoint, "checkpoint-file", "",
		"twilld's; empty: as the running twilld says, else its checkpoint, else the default")
	fs.StringVar(&o.SubnetFile, "subnet-file", "", same)
	fs.StringVar(&o.Bridge, "bridge", "", same)
	fs.StringVar(&o.Iface, "iface", "", same)
	fs.StringVar(&o.CNIDir, "cni-conf-dir", "", "the container runtime's directory of CNI configs; "+
		"empty: as for --checkpoint-file, else /etc/cni/net.d if it has a config of Twill's")
	fs.StringVar(&o.CNIFile, "cni-conf-file", "", "the name of Twill's CNI config there; empty: 10-twill.conflist")
	fs.StringVar(&o.BinDir, "cni-bin-dir", "", "the container runtime's directory of CNI plugins; empty: /opt/cni/bin")
	fs.StringVar(&o.CNICache, "cni-cache-dir", "",
		"the directory in which the container runtime notes what CNI plugins made; empty: /var/lib/cni")
	fs.StringVar(&o.Kubeconfig, "kubeconfig-file", "", same+". "+
		"The API is asked only if twilld has --kube-subnet-mgr")
	fs.StringVar(&o.Reservations, "reservations-dir", "",
		"the directory of the pods' reserved addresses; empty: as the CNI config says")
}

// RegisterLeases adds the flags of a plan that is made from a file of leases.
func (f *Flags) RegisterLeases(fs *pflag.FlagSet) {
	o := &f.files
	fs.StringVar(&o.LeaseFile, "lease-file", "",
		"read the leases from this file instead of the checkpoint: one like that of twilld --lease-file, or what "+
			"kubectl get nodes -o json prints; -: standard input")
	fs.StringVar(&o.NetConf, "net-config-path", "/etc/kube-flannel/net-conf.json",
		"the network config, with --lease-file; of Nodes it may be missing: then subnet.env and the node's annotations say it")
	fs.StringVar(&o.Node, "node", "", "this node's name in the lease file; empty: this machine's")
}

// RegisterBPFFS adds the flag that says where the fast path's maps are.
func (f *Flags) RegisterBPFFS(fs *pflag.FlagSet) {
	fs.StringVar(&f.bpffs, "bpffs", "/sys/fs/bpf", "twilld's: the BPF file system that the fast path is pinned in")
}

// Target returns what the flags say, or one node of it if that is named.
func (f *Flags) Target(node ...string) (Target, error) {
	if err := f.readLeases(); err != nil {
		return nil, err
	}
	switch {
	case f.lab != "":
		l := newLab(*f)
		if len(node) == 0 {
			return l, nil
		}
		return l.node(node[0])
	case f.remote && f.files.LeaseFile == "":
		return newCluster(f.cluster, f.version, node...), nil
	case len(node) > 0:
		return nil, fmt.Errorf("node %q: only a node of a lab can be named, with --lab", node[0])
	}
	return f.here(), nil
}

// maxLeases is how many bytes the standard input may have: some 5,000 Nodes.
const maxLeases = 256 << 20

// readLeases reads the leases from the standard input, if they are there.
func (f *Flags) readLeases() (err error) {
	if f.files.LeaseFile != "-" || f.files.Leases != nil {
		return nil
	}
	f.files.Leases, err = io.ReadAll(io.LimitReader(os.Stdin, maxLeases))
	return err
}

// Any returns what the flags say, or the lab of this machine if they say nothing and there is one.
func (f *Flags) Any() (Target, error) {
	if f.lab == "" && !f.remote {
		l, err := lab.Open("", lab.DefaultName)
		if err != nil {
			return f.here(), nil
		}
		f.lab = l.Name()
	}
	t, err := f.Target()
	if l, ok := t.(Lab); ok && err == nil {
		_, err = l.Open()
	}
	return t, err
}

// Complete returns the names of nodes that an argument may have. Where they cannot be asked for, nothing is offered.
func (f *Flags) Complete(ctx context.Context) []string {
	if f.lab != "" {
		names, _, _ := lab.Names("", f.lab) // it takes no rights
		return names
	}
	t, err := f.Target()
	if err != nil {
		return nil
	}
	names, _ := t.Names(ctx)
	return names
}

// CompletePods returns the pods of the lab, if the flags name one.
func (f *Flags) CompletePods() []string {
	if f.lab == "" {
		return nil
	}
	_, pods, _ := lab.Names("", f.lab)
	return pods
}

// here returns this machine.
func (f *Flags) here() *here {
	h := &here{do: watch.Here("").Do, files: f.files, bpffs: f.bpffs, version: f.version}
	h.files.AskAPI = f.files.LeaseFile == ""
	return h
}
