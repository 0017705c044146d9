package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/internal/plain"
	"github.com/twill-net/twill/target"
)

// maxReports is how many nodes are looked at at the same time: each sends probes, and its report is in memory.
const maxReports = 8

// reports writes the reports of all nodes as they come: NODE.tar.gz each, in one archive.
type reports struct {
	flags    *target.Flags
	log      string
	progress io.Writer // gets a line for each node

	mu      sync.Mutex
	archive *tar.Writer
	written int
	missing []string // nodes without a report, each with the reason
}

// allReports returns what writes the reports of all nodes.
func allReports(f *target.Flags, log string, progress io.Writer) *reports {
	return &reports{flags: f, log: log, progress: plain.NewWriter(progress)}
}

// write writes the archive. That a node has no report is no error: the archive says so.
func (r *reports) write(ctx context.Context, to io.Writer) error {
	t, err := r.flags.Target()
	if err != nil {
		return err
	}
	if _, ok := t.(target.Network); !ok {
		return errors.New("--all: this node is the only one that can be asked here: give --lab, or use kubectl twill report --all")
	}
	names, err := t.Names(ctx)
	if err != nil {
		return err
	}
	r.archive = tar.NewWriter(to)
	var group errgroup.Group
	group.SetLimit(maxReports)
	for _, name := range names {
		group.Go(func() error { return r.one(ctx, name) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if len(r.missing) > 0 {
		if err := r.file("missing.txt", []byte(strings.Join(r.missing, "\n")+"\n")); err != nil {
			return err
		}
	}
	return errors.Join(r.archive.Close(), ctx.Err())
}

// one adds a node's report. The error is that of writing.
func (r *reports) one(ctx context.Context, node string) error {
	packed, files, err := r.pack(ctx, node)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.missing = append(r.missing, node+": "+err.Error())
		fmt.Fprintf(r.progress, "✗ %s: %v\n", node, err)
		return nil
	}
	r.written++
	fmt.Fprintf(r.progress, "%s: %d files\n", node, files)
	return r.file(node+".tar.gz", packed)
}

func (r *reports) pack(ctx context.Context, node string) (packed []byte, files int, err error) {
	if strings.ContainsAny(node, `/\`) || strings.HasPrefix(node, ".") {
		return nil, 0, fmt.Errorf("a node's name %q is no file's", node)
	}
	t, err := r.flags.Target(node)
	if err != nil {
		return nil, 0, err
	}
	b, err := t.Report(ctx, r.log)
	if err != nil {
		return nil, 0, err
	}
	var out bytes.Buffer
	err = b.WriteTar(&out)
	return out.Bytes(), len(b), err
}

func (r *reports) file(name string, data []byte) error {
	h := &tar.Header{Name: "twill-reports/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: time.Now()}
	if err := r.archive.WriteHeader(h); err != nil {
		return err
	}
	_, err := r.archive.Write(data)
	return err
}
