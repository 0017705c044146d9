package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
)

// healthPort is free in every machine.
const healthPort = 10256

// flannelQueue has flannel start among up to 20,000 nodes: it queues an event for each before anything takes one from
// the queue, and with its default, 5,000, waits ten minutes for room and ends.
const flannelQueue = "EVENT_QUEUE_DEPTH=20000"

// Agent is a running agent process.
type Agent struct {
	host.Process
	machine *Machine
	Began   time.Time // just before it was started
}

// Start runs the agent binary at path for node 0. A binary that is not named twilld gets flannel's flags only.
func (m *Machine) Start(path string) (*Agent, error) {
	args := []string{
		"--kube-subnet-mgr",
		"--kubeconfig-file=" + m.cluster.server.KubeconfigFile(agentUser),
		"--net-config-path=" + filepath.Join(m.dir, "net-conf.json"),
		"--subnet-file=" + filepath.Join(
			m.dir,
			"subnet.env",
		),
		"--ip-masq",
		"--iface=u0",
		"--healthz-ip=127.0.0.1",
		"--healthz-port=" + strconv.Itoa(healthPort),
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "GOGC=50", "NODE_NAME=" + Name(0)}
	if strings.HasPrefix(filepath.Base(path), "twilld") {
		args = append(args, "--checkpoint-file="+m.checkpoint())
	} else {
		env = append(env, flannelQueue)
	}
	log := filepath.Join(m.dir, "agent.log")
	if err := os.RemoveAll(log); err != nil {
		return nil, err
	}
	began := time.Now()
	p, err := m.Host.Start(
		host.Command{
			Path: path,
			Args: args,
			Env:  env,
			Log:  log,
		},
	)
	if err != nil {
		return nil, err
	}
	return &Agent{p, m, began}, m.remember(p)
}

// remember writes down which process is the agent, for endLeftover.
func (m *Machine) remember(p host.Process) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return os.WriteFile(m.agentFile(), data, 0o644)
}

func (m *Machine) agentFile() string { return filepath.Join(m.dir, "agent.json") }

// endLeftover kills the agent of a run that crashed.
func (m *Machine) endLeftover() error {
	data, err := os.ReadFile(m.agentFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var p host.Process
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("read %s: %w", m.agentFile(), err)
	}
	return p.Kill()
}

// Close ends the agent.
func (a *Agent) Close() error { return a.Stop(context.Background(), 5*time.Second) }

// LogSize is how many bytes the agent has logged.
func (a *Agent) LogSize() int64 {
	info, err := os.Stat(a.Log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// CPU is the processor time that the agent has used.
func (a *Agent) CPU() time.Duration { return cpuOf(a.PID) }

// cpuOf is the processor time that a process has used, 0 if it has ended.
func cpuOf(pid int) time.Duration {
	var t unix.Timespec
	// The clock of a process: its pid inverted and shifted, and 2 for "scheduled" (kernel/time/posix-cpu-timers.c).
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// Memory is what an agent holds, in bytes. RSS has the pages of its executable, which the kernel may drop at any time, and
// Private is what is the process's own: the heap, stacks and Go's runtime.
type Memory struct{ RSS, Private, PSS, Peak int64 }

// Memory reads smaps_rollup and status of the process.
func (a *Agent) Memory() (m Memory, err error) {
	for file, fields := range map[string]map[string]*int64{
		"smaps_rollup": {"Rss:": &m.RSS, "Anonymous:": &m.Private, "Pss:": &m.PSS},
		"status":       {"VmHWM:": &m.Peak},
	} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", a.PID, file))
		if err != nil {
			return m, err
		}
		for line := range strings.Lines(string(data)) {
			words := strings.Fields(line)
			if to := fields[words[0]]; to != nil && len(words) > 1 {
				kib, err := strconv.ParseInt(words[1], 10, 64)
				if err != nil {
					return m, err
				}
				*to = kib << 10
			}
		}
	}
	return m, nil
}

// get reads from the agent's health port.
func (a *Agent) get(ctx context.Context, path string) (string, error) {
	client := http.Client{
		Timeout: time.Minute,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
				err = a.machine.Do(
					func() error { c, err = (&net.Dialer{}).DialContext(ctx, network, address); return err },
				)
				return c, err
			},
		},
	}
	req, err := http.NewRequestWithContext(
		ctx,
		http.MethodGet,
		fmt.Sprintf("http://127.0.0.1:%d%s", healthPort, path),
		nil,
	)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", path, resp.Status, body)
	}
	return string(body), err
}

// WaitReady returns how long after its start the agent was ready.
func (a *Agent) WaitReady(ctx context.Context) (time.Duration, error) {
	return a.wait(ctx, "is ready", 2*time.Millisecond, func() error { _, err := a.get(ctx, "/readyz"); return err })
}

// WaitPeers returns how long after its start the agent knew that many peers.
func (a *Agent) WaitPeers(ctx context.Context, peers int) (time.Duration, error) {
	want := fmt.Sprintf("\ntwill_peers %d\n", peers)
	return a.wait(ctx, fmt.Sprintf("knows %d peers", peers), 20*time.Millisecond, func() error {
		metrics, err := a.get(ctx, "/metrics")
		if err == nil && !strings.Contains(metrics, want) {
			err = errors.New("its metrics say something else")
		}
		return err
	})
}

// wait asks again and again, and returns how long after the agent's start the answer was no error.
func (a *Agent) wait(ctx context.Context, what string, every time.Duration, ask func() error) (time.Duration, error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return time.Since(a.Began), nil
		}
		if !a.Running() {
			return 0, errors.New("the agent has ended, see " + a.Log)
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait until the agent %s: %w", what, err)
		case <-tick.C:
		}
	}
}
