package target

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/service"
)

// remote is a node of a cluster: its agent's pod runs twillctl.
type remote struct {
	Cluster
	agentPod
}

// decode decodes the JSON that a node printed.
func decode(node string, out []byte, into any) error {
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("node %s printed no JSON (is its twillctl as new as this one?): %w", node, err)
	}
	return nil
}

// askFor runs a command on the node, and returns the value that it prints as JSON.
func askFor[T any](ctx context.Context, r remote, args ...string) (it T, err error) {
	out, _, err := r.ask(ctx, nil, append(args, "--output=json")...)
	if err == nil {
		err = decode(r.node, out, &it)
	}
	return it, err
}

func (r remote) View() View { return View{Kind: "node", Name: r.node} }

func (r remote) Names(context.Context) ([]string, error) { return []string{r.node}, nil }

func (r remote) Places(context.Context) (Places, error) { return nowhere(), nil }

func (r remote) Status(ctx context.Context) (doctor.StatusReport, error) {
	return askFor[doctor.StatusReport](ctx, r, "status")
}

// Diagnose has the node send what is to be sent. A twillctl of an earlier version sends to its peers with --probe only.
func (r remote) Diagnose(ctx context.Context, probe doctor.Probing, outside ...netip.Addr) (doctor.Diagnosis, error) {
	args := []string{"doctor", fmt.Sprintf("--probe=%t", probe == doctor.AllProbes)}
	if probe == doctor.NoProbes {
		args = append(args, "--no-probe")
	}
	for _, a := range outside {
		args = append(args, "--outside="+a.String())
	}
	return askFor[doctor.Diagnosis](ctx, r, args...)
}

func (r remote) Doctor(ctx context.Context, probe doctor.Probing, outside ...netip.Addr) (doctor.Survey, error) {
	d, err := r.Diagnose(ctx, probe, outside...)
	return alone(d), err
}

// History returns what the agent remembers. The node has a clock of its own.
func (r remote) History(ctx context.Context, since time.Duration) (doctor.HistoryReport, error) {
	h, err := askFor[doctor.HistoryReport](ctx, r, "history")
	return h.After(time.Now().Add(-since)), err
}

// Trace follows the node's part of the path between two addresses.
func (r remote) Trace(ctx context.Context, src, dst string, how Tracing) (doctor.Trace, error) {
	return askFor[doctor.Trace](ctx, r, "trace", fmt.Sprintf("--probe=%t", how.Probe), fmt.Sprintf("--live=%t", how.Live),
		"--for="+how.During.Round(time.Millisecond).String(), src, dst)
}

// connect has the pod of an address connect to what was found to be behind a Service.
func (r remote) connect(ctx context.Context, src netip.Addr, q service.Query, targets []service.Target) (doctor.Trace, error) {
	trace := doctor.NewServiceTrace(src, q.String())
	input, err := json.Marshal(targets)
	if err != nil {
		return trace, err
	}
	out, _, err := r.ask(ctx, bytes.NewReader(input), "trace", "--output=json", "--targets", "--objects=-",
		src.String(), q.String())
	if err == nil {
		err = decode(r.node, out, &trace)
	}
	return trace, err
}

func (r remote) Test(ctx context.Context, g Goals) (doctor.Connectivity, error) {
	args := []string{"test"}
	for _, f := range []struct {
		name   string
		values []string
	}{{"--pod", g.Pods}, {"--service", g.Services}, {"--dns", g.DNS}, {"--outside", g.Outside}} {
		for _, v := range f.values {
			args = append(args, f.name+"="+v)
		}
	}
	return askFor[doctor.Connectivity](ctx, r, args...)
}

func (r remote) Plan(ctx context.Context) (Plan, error) {
	out, found, err := r.ask(ctx, nil, "plan")
	return Plan{string(out), found}, err
}

func (r remote) FastPath(ctx context.Context) (FastPathReport, error) {
	return askFor[FastPathReport](ctx, r, "fastpath", "status")
}

func (r remote) PauseFastPath(ctx context.Context, pause time.Duration) ([]Said, error) {
	command := []string{"fastpath", "resume"}
	if pause > 0 {
		command = []string{"fastpath", "pause", pause.String()}
	}
	out, _, err := r.ask(ctx, nil, command...)
	if err != nil {
		return nil, err
	}
	return []Said{{Node: r.node, Text: strings.TrimSuffix(string(out), "\n")}}, nil
}

// Report returns the report of the node, and the end of its agent's log, which kubectl has.
func (r remote) Report(ctx context.Context, _ string) (Bundle, error) {
	out, _, err := r.ask(ctx, nil, "report", "--file=-")
	if err != nil {
		return nil, err
	}
	files, err := ReadBundle(bytes.NewReader(out))
	if err != nil {
		return nil, fmt.Errorf("read the report of node %s: %w", r.node, err)
	}
	log, err := r.log(ctx)
	if err != nil {
		return nil, err
	}
	files = append(files, Member{"twilld.log", log})
	// It is no error that there was no container before this one, or that its log is gone.
	if log, err := r.log(ctx, "--previous"); err == nil {
		files = append(files, Member{"twilld-previous.log", log})
	}
	return files, nil
}

// maxLines is how many lines of the log's end to ask for: most of them are shorter than a hundred bytes.
// --limit-bytes would cut off the end.
const maxLines = 10000

// log returns the end of the agent's log.
func (r remote) log(ctx context.Context, flags ...string) ([]byte, error) {
	args := []string{"logs", "--namespace=" + r.namespace, r.name, "--container=" + AgentContainer,
		fmt.Sprintf("--tail=%d", maxLines)}
	out, err := r.Kubectl(ctx, append(args, flags...)...)
	return out[max(0, len(out)-maxLog):], err
}
