package target

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab/rebuild"
)

// maxLog is how much of the log's end goes into the bundle, in bytes.
const maxLog = 1 << 20

// Report looks at the node as the doctor does with --probe, and keeps what packets were lost by.
func (h *here) Report(ctx context.Context, log string) (Bundle, error) {
	began := time.Now()
	f, err := h.gather(ctx, doctor.AllProbes)
	if err != nil {
		return nil, err
	}
	var text, findings, status bytes.Buffer
	d, losses, failed := h.examine(ctx, f, began)
	if failed != nil { // a report of a node that cannot be probed is one, too
		d.Unread = append(d.Unread, "probes: "+failed.Error())
	}
	lost, err := json.MarshalIndent(losses, "", "  ")
	if err != nil {
		return nil, err
	}
	facts, err := json.MarshalIndent(f.WithoutSecrets(), "", "  ")
	if err = errors.Join(err, d.WriteText(&text), d.WriteJSON(&findings),
		doctor.StatusReport{Schema: doctor.Schema, Nodes: []doctor.Status{doctor.NewStatus(f)}}.WriteJSON(&status)); err != nil {
		return nil, err
	}
	files := Bundle{{"doctor.txt", text.Bytes()}, {"doctor.json", findings.Bytes()},
		{"status.json", status.Bytes()}, {"facts.json", facts},
		{"losses.json", lost}, // with the rules that packets met
		{"plan.txt", []byte(f.Plan.String())}, {"want.txt", []byte(f.Want.String())},
		{"have.txt", []byte(f.Have.String())},
		{"version.txt", []byte("twillctl " + h.version + "\n")}}
	files = append(files, h.commands(ctx)...)
	files = append(files, h.remembered(ctx)...)
	if log = cmp.Or(log, h.log); log != "" {
		data, err := tailOf(log)
		if err != nil {
			return nil, err
		}
		files = append(files, Member{"twilld.log", data})
	}
	return files, nil
}

// remembered returns what the agent remembers of the last hour, nothing if it cannot be asked.
func (h *here) remembered(ctx context.Context) Bundle {
	r, err := h.History(ctx, time.Hour)
	var text bytes.Buffer
	if err != nil || r.WriteJSON(&text) != nil {
		return nil
	}
	return Bundle{{"history.json", text.Bytes()}}
}

// commands returns the output of the commands that people ask for first. It leaves out programs that are not installed.
func (h *here) commands(ctx context.Context) (files Bundle) {
	run := func(command ...string) ([]byte, error) {
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Stdout, cmd.Stderr = &out, &out
		err := h.do(cmd.Start)
		if err == nil {
			_ = cmd.Wait() // its error messages are in the file
		}
		return out.Bytes(), err
	}
	for name, command := range map[string][]string{
		"ip-link.txt": {"ip", "-d", "-s", "link"}, "ip-addr.txt": {"ip", "addr"},
		"ip-route.txt": {"ip", "route", "show", "table", "all"},
		"ip-rule.txt":  {"ip", "rule"}, "ip-neigh.txt": {"ip", "neigh"}, "bridge-fdb.txt": {"bridge", "fdb"},
	} {
		if out, err := run(command...); err == nil {
			files = append(files, Member{name, out})
		}
	}
	for name, out := range rebuild.Collect(run) {
		files = append(files, Member{name, out})
	}
	return files
}

func tailOf(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(0, info.Size()-maxLog), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}
