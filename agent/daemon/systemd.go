package daemon

import (
	"context"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/twill-net/twill/agent"
)

// serviceManager is told how the agent is doing, as sd_notify(3) says: READY when subnet.env has the lease, which is
// when flanneld says so; STATUS when the reason changes why the node is not ready; WATCHDOG as long as /healthz is ok.
// Without NOTIFY_SOCKET, as in a container, nobody is told.
type serviceManager struct {
	socket   string        // the path of a socket, or its abstract name after an @
	watchdog time.Duration // within which it wants to hear of a living process, 0: not at all
	starting func() (does string, hangs bool)
	agent    atomic.Pointer[agent.Agent] // nil: the start waits
	status   string                      // what was said last
	ready    bool                        // it was said
}

// newServiceManager takes the variables of the protocol out of the environment, so that no child speaks for twilld.
func newServiceManager() (*serviceManager, error) {
	m := &serviceManager{socket: os.Getenv("NOTIFY_SOCKET")}
	if err := os.Unsetenv("NOTIFY_SOCKET"); err != nil {
		return nil, err
	}
	var err error
	m.watchdog, err = daemon.SdWatchdogEnabled(true)
	return m, err
}

// follow tells until ctx is done.
func (m *serviceManager) follow(ctx context.Context) error {
	if m.socket == "" {
		return nil
	}
	every := time.Second
	if m.watchdog > 0 {
		every = min(every, m.watchdog/3)
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		m.tell()
		select {
		case <-ctx.Done():
			m.send(daemon.SdNotifyStopping)
			return nil
		case <-ticker.C:
		}
	}
}

// tell says what has changed, and that the process lives.
func (m *serviceManager) tell() {
	a := m.agent.Load()
	status, alive := m.now(a)
	if status != m.status {
		m.status = status
		m.send("STATUS=" + status)
	}
	if !m.ready && a != nil && a.Leased() {
		m.ready = true
		m.send(daemon.SdNotifyReady)
	}
	if m.watchdog > 0 && alive {
		m.send(daemon.SdNotifyWatchdog)
	}
}

// now returns in one line how the agent is, nil while the start waits, and whether the process lives.
func (m *serviceManager) now(a *agent.Agent) (status string, alive bool) {
	if a == nil {
		does, hangs := m.starting()
		return strings.ReplaceAll(does, "\n", "; "), !hangs
	}
	if err := a.Ready(); err != nil {
		return strings.ReplaceAll(err.Error(), "\n", "; "), a.Alive() == nil
	}
	return "the node is ready", a.Alive() == nil
}

// sendLimit is how long a datagram waits for room in the manager's queue: twilld ends also if nobody reads it.
const sendLimit = time.Second

// send sends one datagram. To a manager that does not listen nothing can be said; it sees the process itself.
func (m *serviceManager) send(state string) {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	if conn.SetWriteDeadline(time.Now().Add(sendLimit)) == nil {
		_, _ = conn.Write([]byte(state))
	}
}
