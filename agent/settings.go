package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/backend"
)

// Settings are the options that a running twilld works with: its flags, the environment and the
// defaults, resolved, and without secrets. Others on the node read them instead of twilld's command
// line: from the running agent with AskSettings, and after it from its checkpoint.
type Settings struct {
	SubnetFile   string                 // for the CNI plugin
	Checkpoint   string                 // where lease and peers are kept for a start without the store; empty: nowhere
	Bridge       string                 // the pods'; empty: twilld makes none
	Choice       Choice                 // as the flags say, without what the cluster knows of the node
	Firewall     backend.FirewallConfig // likewise: without Mode, Stacks and Bridge
	Masquerade   string                 // ip-masq-agent's config file, as the agent sees it; empty: none
	Blackhole    bool
	Healthz      string   // host:port, empty: not served
	Conflist     Conflist // no Source: twilld installs none
	BinDir       string   // where twilld keeps the CNI plugins installed, empty: nowhere
	Reservations string   // the directory in which twilld frees addresses, empty: none
	Kube         KubeSettings
	Policies     PolicySettings
	ReachPeers   int           // that are asked for an answer in each round; 0: none is
	ReachRound   time.Duration // one round
	ReachDNS     []netip.Addr  // the cluster's DNS, to be asked too
	BPFFS        string        // the BPF file system of the fast path's programs, as the agent sees it
	FastPath     string        // whether there is to be one: on, off, or else as the network config says
}

// Shortcuts returns the fast path that is to be with a backend.
func (s Settings) Shortcuts(b backend.Backend) (wanted backend.FastPath) {
	if a, ok := backend.Parts(b)[0].(backend.Accelerable); ok {
		wanted = a.Accelerable()
	}
	switch s.FastPath {
	case "on":
		wanted.On = true
	case "off":
		wanted.On = false
	}
	return wanted
}

// PolicySettings tell what the agent does with network policies, and where it reads them.
type PolicySettings struct {
	Enforce bool
	Audit   bool   // instead: what they deny is counted, and passes
	Cluster bool   // ClusterNetworkPolicies, too
	File    string // or directory of manifests, as the agent sees it; empty: the cluster's API
}

// On reports whether the agent keeps tables for them.
func (s PolicySettings) On() bool { return s.Enforce || s.Audit }

// KubeSettings tell how the agent reaches the cluster's API.
type KubeSettings struct {
	Use              bool // its leases are there
	Kubeconfig       string
	URL              string
	AnnotationPrefix string
}

// SettingsSocket is an abstract Unix socket: each network namespace has its own. The
// twilld that works in the namespace answers each connection with its Settings in JSON; while it
// holds the name, no other can start there.
const SettingsSocket = "@twill/agent"

// maxSettings bounds what AskSettings reads, in bytes.
const maxSettings = 64 << 10

// settingsTimeout bounds how long one question and its answer may take.
const settingsTimeout = time.Second

// Serve answers every connection to l with s until l is closed.
func (s Settings) Serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(settingsTimeout))
		_ = json.NewEncoder(conn).Encode(s) // the other end may have gone away
		conn.Close()
	}
}

// AskSettings returns the settings and the process of the twilld that runs in the calling thread's
// network namespace. It believes root's processes and the caller's own. The process is 0 if it is
// not in the caller's PID namespace.
func AskSettings() (s Settings, pid int, err error) {
	conn, err := net.DialTimeout("unix", SettingsSocket, settingsTimeout)
	if err != nil {
		return s, 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return s, 0, err
	}
	var peer *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		peer, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return s, 0, err
	}
	if peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		return s, 0, fmt.Errorf("%s belongs to user %d: want root's", SettingsSocket, peer.Uid)
	}
	if err := conn.SetDeadline(time.Now().Add(settingsTimeout)); err != nil {
		return s, 0, err
	}
	if err := json.NewDecoder(io.LimitReader(conn, maxSettings)).Decode(&s); err != nil {
		return s, 0, fmt.Errorf("read the answer of twilld: %w", err)
	}
	return s, int(peer.Pid), nil
}
