package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/plain"
	"github.com/twill-net/twill/lab/rebuild"
)

func reportCommand() *cobra.Command {
	var t target
	var path, log string
	var html bool
	c := &cobra.Command{
		Use:               "report [NODE]",
		ValidArgsFunction: t.completeNode,
		Short:             "Write one file for a bug report: facts, findings, plan and log, without secrets",
		Args:              cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if html {
				if !c.Flags().Changed("file") {
					path = "twill-report.html"
				}
				return t.reportHTML(c.Context(), c.OutOrStdout(), path, args)
			}
			bundle := t.bundle
			if t.inCluster() {
				bundle = t.cluster.bundle
			}
			files, err := bundle(c.Context(), args, log)
			if err != nil {
				return err
			}
			if path == "-" {
				return writeTar(plain.Raw(c.OutOrStdout()), files)
			}
			if err := writeNew(path, tarOf(files)); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s: %d files\n", path, len(files))
			return err
		},
	}
	t.register(c)
	c.Flags().StringVarP(&path, "file", "f", "twill-report.tar.gz", "the file to write; -: standard output; with --html twill-report.html")
	c.Flags().BoolVar(&html, "html", false,
		"write the page of twillctl ui with what it shows now instead, as one file that any browser opens: all nodes of a lab or a cluster")
	c.Flags().StringVar(&log, "log", "",
		"the agent's log, whose end goes into the report; the path is known for a lab's node")
	return c
}

// member is one file of the bundle.
type member struct {
	name string
	data []byte
}

// maxLog is how much of the log's end goes into the bundle, in bytes.
const maxLog = 1 << 20

func (t *target) bundle(ctx context.Context, args []string, log string) ([]member, error) {
	t.options.Probe = true
	began := time.Now()
	f, err := t.gather(ctx, args)
	if err != nil {
		return nil, err
	}
	var text, findings, status bytes.Buffer
	d := doctor.Diagnose(f, time.Since(began))
	facts, err := json.MarshalIndent(f.WithoutSecrets(), "", "  ")
	if err = errors.Join(err, d.WriteText(&text), d.WriteJSON(&findings),
		doctor.StatusReport{Schema: doctor.Schema, Nodes: []doctor.Status{doctor.NewStatus(f)}}.WriteJSON(&status)); err != nil {
		return nil, err
	}
	files := []member{{"doctor.txt", text.Bytes()}, {"doctor.json", findings.Bytes()},
		{"status.json", status.Bytes()}, {"facts.json", facts},
		{"plan.txt", []byte(f.Plan.String())}, {"want.txt", []byte(f.Want.String())},
		{"have.txt", []byte(f.Have.String())},
		{"version.txt", []byte("twillctl " + version + "\n")}}
	raw, where := t.commands(ctx, args)
	files = append(files, raw...)
	files = append(files, t.remembered(ctx, args)...)
	if log == "" {
		log = where
	}
	if log != "" {
		data, err := tailOf(log)
		if err != nil {
			return nil, err
		}
		files = append(files, member{"twilld.log", data})
	}
	return files, nil
}

// remembered returns what the agent remembers of the last hour, nothing if it cannot be asked.
func (t *target) remembered(ctx context.Context, args []string) []member {
	r, err := t.history(ctx, args, time.Hour)
	var text bytes.Buffer
	if err != nil || r.WriteJSON(&text) != nil {
		return nil
	}
	return []member{{"history.json", text.Bytes()}}
}

// commands returns the output of the commands that people ask for first. It leaves out programs that are not installed.
func (t *target) commands(ctx context.Context, args []string) (files []member, log string) {
	do := func(f func() error) error { return f() }
	if t.lab != "" {
		var err error
		if do, log, err = inLabNode(t.lab, args); err != nil {
			return nil, ""
		}
	}
	run := func(command ...string) ([]byte, error) {
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Stdout, cmd.Stderr = &out, &out
		err := do(cmd.Start)
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
			files = append(files, member{name, out})
		}
	}
	for name, out := range rebuild.Collect(run) {
		files = append(files, member{name, out})
	}
	return files, log
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

// writeNew writes a report that only its owner can read: it has addresses and names of a cluster. The file must not
// exist: in a directory that others may write to, they could have put a file or a link there.
func writeNew(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write the report: %s exists already: remove it, or name another file with --file", path)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write the report: %w", err), os.Remove(path))
	}
	return nil
}

// inBundle is the directory of the files in a bundle.
const inBundle = "twill-report/"

// tarOf returns a function that writes a bundle.
func tarOf(files []member) func(io.Writer) error {
	return func(to io.Writer) error { return writeTar(to, files) }
}

func writeTar(to io.Writer, files []member) error {
	z := gzip.NewWriter(to)
	w := tar.NewWriter(z)
	for _, f := range files {
		text := plain.Text(f.data)
		header := &tar.Header{Name: inBundle + f.name, Mode: 0o600, Size: int64(len(text)), ModTime: time.Now()}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), z.Close())
}

// These bound what is read of a node's bundle, whatever the node sends.
const (
	maxMembers = 100
	maxBytes   = maxOutput // of all members, unpacked
)

// memberName matches the names that members may have: they become files in whatever directory the bundle is unpacked
// in.
var memberName = regexp.MustCompile(`^[a-z0-9-]+\.(txt|json|log)$`)

func readTar(from io.Reader) ([]member, error) {
	z, err := gzip.NewReader(from)
	if err != nil {
		return nil, err
	}
	limit := &io.LimitedReader{R: z, N: maxBytes}
	var files []member
	for r := tar.NewReader(limit); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) && limit.N > 0 {
			return files, nil
		}
		if err != nil {
			return nil, unpackError(err, limit)
		}
		name := strings.TrimPrefix(h.Name, inBundle)
		if h.Typeflag != tar.TypeReg || !memberName.MatchString(name) || len(files) == maxMembers {
			return nil, fmt.Errorf("member %q: want at most %d files, with names such as facts.json",
				h.Name, maxMembers)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, unpackError(err, limit)
		}
		files = append(files, member{name, data})
	}
}

func unpackError(err error, limit *io.LimitedReader) error {
	if limit.N <= 0 {
		return fmt.Errorf("it is larger than %d bytes when it is unpacked", maxBytes)
	}
	return err
}
