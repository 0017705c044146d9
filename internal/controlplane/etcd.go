package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// Etcd is a single etcd member in a process of its own. What was written to it survives the end of the
// process, but not a crash of the machine: it never syncs to disk.
type Etcd struct {
	url  string
	proc *process
}

// EtcdCommand returns the command line of an etcd that keeps its data in dir and serves at the client URL.
func EtcdCommand(dir, url string) ([]string, error) {
	binary, err := FindBinary("etcd")
	return []string{
		binary,
		"--data-dir=" + filepath.Join(dir, "data"),
		"--log-level=warn",
		"--unsafe-no-fsync",
		"--listen-client-urls=" + url,
		"--advertise-client-urls=" + url,
		// A single member has no peers, so any free port will do.
		"--listen-peer-urls=http://127.0.0.1:0",
		// It always wins its election, so it need not wait long before it holds one.
		"--heartbeat-interval=20", "--election-timeout=200",
	}, err
}

// EtcdReady returns nil once the etcd at the client URL serves.
func EtcdReady(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s", resp.Status)
	}
	return nil
}

// StartEtcd starts etcd with the data in dir and returns when it serves, at the address or, if that is empty, on a free
// loopback port. ctx bounds the start only: the process ends with Close, or with this program.
func StartEtcd(ctx context.Context, dir, address string) (*Etcd, error) {
	// Another server at the address would pass for this one.
	l, err := net.Listen("tcp", cmp.Or(address, "127.0.0.1:0"))
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	url := "http://" + l.Addr().String()
	l.Close()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create etcd directory: %w", err)
	}
	command, err := EtcdCommand(dir, url)
	if err != nil {
		return nil, err
	}
	e := &Etcd{url: url}
	if e.proc, err = startProcess(command, filepath.Join(dir, "etcd.log")); err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	err = e.proc.await(ctx, func(ctx context.Context) error { return EtcdReady(ctx, client, url) })
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Endpoints returns the client URL, in the shape that etcd clients and --etcd-servers take.
func (e *Etcd) Endpoints() []string { return []string{e.url} }

// Close kills the process, since etcd (3.7) would wait seven seconds for clients to end their watches. More
// calls do nothing.
func (e *Etcd) Close() {
	_ = e.proc.kill() // an error would say that the process survived SIGKILL
}
