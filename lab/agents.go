package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/host"
)

const (
	// healthPort can be the same everywhere: each node has its own loopback.
	healthPort = 10256
	// grace is how long an agent may take to end.
	grace = 5 * time.Second
	// readyLimit is how long an agent may take to have a lease and a data path. It ends only what hangs: on a busy
	// machine without hardware for virtual ones, half a minute is not enough.
	readyLimit = 2 * time.Minute
	// quietWait is how long a wait may take before the lab says what it waits for.
	quietWait = 2 * time.Second
)

// agentPath is the node's agent binary.
func (n *Node) agentPath() string {
	agents := n.lab.spec.Agents
	return cmp.Or(agents[n.Name], agents[""], n.lab.spec.Programs.Agent)
}

// foreign reports whether the agent is another project's, which takes flannel's flags and no more.
func (n *Node) foreign() bool { return !strings.HasPrefix(filepath.Base(n.agentPath()), "twilld") }

// AgentFlags is the command line of the node's agent.
func (n *Node) AgentFlags() []string {
	flags := append(n.lab.store.flags(n),
		"--subnet-file="+n.SubnetFile(),
		"--ip-masq",
		"--healthz-ip=127.0.0.1", "--healthz-port="+strconv.Itoa(healthPort))
	if !n.foreign() {
		flags = append(flags, "--node-name="+n.Name, "--checkpoint-file="+n.CheckpointFile(), "--v=1")
		flags = slices.Concat(flags, n.lab.policyFlags(), n.lab.fastPathFlags())
	}
	return append(flags, n.site().flags(n.Underlay()[0])...)
}

// SetAgentFlags gives all agents flags behind the lab's own, in place of those of an earlier call, from their next start on.
func (l *Lab) SetAgentFlags(flags []string) error {
	return l.change(func(s *state) { s.Flags = flags })
}

// DryRun is the command that prints what the node's agent would change. The program is Twill's own, whatever the
// node's agent is.
func (n *Node) DryRun() []string {
	flags := append(n.lab.store.flags(n), "--subnet-file="+n.SubnetFile(), "--ip-masq", "--node-name="+n.Name,
		"--checkpoint-file="+n.CheckpointFile(), "--dry-run")
	return slices.Concat([]string{n.lab.spec.Programs.Agent}, flags, n.lab.policyFlags(), n.lab.fastPathFlags(), n.site().flags(n.Underlay()[0]))
}

// CleanupCommand is the command that removes everything of Twill's from the node.
func (n *Node) CleanupCommand() []string {
	return []string{n.lab.spec.Programs.Agent, "--cleanup", "--subnet-file=" + n.SubnetFile(),
		"--checkpoint-file=" + n.CheckpointFile(), "--bpffs=" + n.lab.BPFDir()}
}

// StartAgent starts the node's agent and returns when it is ready. One that runs already is left alone.
func (n *Node) StartAgent(ctx context.Context) error {
	if n.AgentRunning() {
		return nil
	}
	p, err := n.Start(
		host.Command{
			Path: n.agentPath(),
			Args: n.AgentFlags(),
			Env:  n.lab.environment(append(n.lab.AgentEnvironment(), "NODE_NAME="+n.Name)...),
			Log:  n.Log(),
		},
	)
	if err != nil {
		return err
	}
	if err := n.lab.change(func(*state) { n.state.Agent = p }); err != nil {
		return errors.Join(err, p.Kill())
	}
	return n.WaitReady(ctx)
}

// environment is what processes of the lab get: nothing of this program's, whose proxies and TWILLD_ variables
// are not meant for them, and the mark by which Down finds them.
func (l *Lab) environment(more ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/root", l.mark()}, more...)
}

func (l *Lab) mark() string { return "TWILL_LAB=" + l.dir }

// WaitReady returns when the node's agent is ready.
func (n *Node) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	var last error
	quiet := time.Now().Add(quietWait)
	err := poll(ctx, 10*time.Millisecond, func() (bool, error) {
		if !n.AgentRunning() {
			return false, errors.New("it has ended")
		}
		if last = n.ready(ctx); last != nil && time.Now().After(quiet) {
			n.lab.progress(fmt.Sprintf("%s: waiting for the agent: %v", n.Name, last))
			quiet = time.Now().Add(10 * quietWait)
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the agent of %s: %w\n%s", n.Name, errors.Join(err, last), tail(n.Log(), 8))
	}
	return nil
}

// ready asks a foreign agent no more than whether it lives: flannel has no /readyz, and writes subnet.env when it
// has a lease.
func (n *Node) ready(ctx context.Context) error {
	if _, err := os.Stat(n.SubnetFile()); err != nil {
		return err
	}
	if n.foreign() {
		return n.Probe(ctx, "/healthz")
	}
	return n.Probe(ctx, "/readyz")
}

// Probe asks the agent's /healthz or /readyz; the error is what it says if it is not 200.
func (n *Node) Probe(ctx context.Context, path string) error {
	_, err := n.Ask(ctx, path)
	return err
}

// Ask returns the agent's answer to a path of its health checks. One that is not 200 is an error.
func (n *Node) Ask(ctx context.Context, path string) (string, error) {
	return n.ask(ctx, healthPort, path)
}

// ask returns the answer of a server on the node's loopback.
func (n *Node) ask(ctx context.Context, port int, path string) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.Dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s of %s: %s: %s", path, n.Name, resp.Status, strings.TrimSpace(string(text)))
	}
	return string(text), err
}

// AgentRunning reports whether the node's agent process is there.
func (n *Node) AgentRunning() bool { return n.Agent().Running() }

// Agent is the node's agent process, zero if none was started.
func (n *Node) Agent() (p host.Process) {
	n.lab.view(func(*state) { p = n.state.Agent })
	return p
}

// StopAgent ends the agent with SIGTERM. Its data path stays.
func (n *Node) StopAgent(ctx context.Context) error { return n.Agent().Stop(ctx, grace) }

// KillAgent ends the agent with SIGKILL.
func (n *Node) KillAgent() error { return n.Agent().Kill() }

// RestartAgent ends the agent with SIGTERM and starts it again.
func (n *Node) RestartAgent(ctx context.Context) error {
	if err := n.StopAgent(ctx); err != nil {
		return err
	}
	return n.StartAgent(ctx)
}

// Subnets are the node's subnets as its agent leased them, and none if it has not.
func (n *Node) Subnets() []netip.Prefix {
	env, err := n.Env()
	if err != nil {
		return nil
	}
	var subnets []netip.Prefix
	for _, s := range env.Subnets {
		subnets = append(subnets, s.Masked())
	}
	return subnets
}

// tail is the end of a log, for errors: why a program ended stands in its last lines.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}
