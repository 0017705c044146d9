package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
)

// EtcdConfig says where an etcd keeps its data and where it listens.
type EtcdConfig struct {
	Dir       string // data and etcd.log; created if missing, reused if not
	ClientURL string // http://host:port; port 0 takes a free one
	Ready     func() // called once when etcd serves; may be nil
}

// Etcd is a single etcd member inside this process. It forgets what it was told when the machine crashes, since
// it never syncs to disk, but not when the process is killed.
type Etcd struct {
	embedded *embed.Etcd
	closing  sync.Once // embed panics when it is closed twice

	mu      sync.Mutex
	servers []*grpc.Server
}

// RunEtcd runs etcd until ctx is done and returns nil then, or the error that ended it earlier.
func RunEtcd(ctx context.Context, cfg EtcdConfig) error {
	e, err := startEtcd(ctx, cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	if cfg.Ready != nil {
		cfg.Ready()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-e.embedded.Err():
		return fmt.Errorf("run etcd: %w", err)
	}
}

// StartEtcd starts etcd on a free loopback port and returns when it serves. ctx bounds the start only.
func StartEtcd(ctx context.Context, dir string) (*Etcd, error) {
	return startEtcd(ctx, EtcdConfig{Dir: dir, ClientURL: "http://127.0.0.1:0"})
}

// Endpoints returns the client URL, in the shape that etcd clients and --etcd-servers take.
func (e *Etcd) Endpoints() []string {
	return []string{"http://" + e.embedded.Clients[0].Addr().String()}
}

// Close cuts all connections, open watches too, and returns when etcd has released its files. More calls do nothing.
func (e *Etcd) Close() { e.closing.Do(e.close) }

func (e *Etcd) close() {
	// Left alone, etcd (3.7) waits seven seconds for clients to end their watches.
	e.mu.Lock()
	for _, s := range e.servers {
		s.Stop()
	}
	e.mu.Unlock()
	e.embedded.Close()
}

func startEtcd(ctx context.Context, cfg EtcdConfig) (*Etcd, error) {
	e := &Etcd{}
	embedCfg, err := e.config(cfg)
	if err != nil {
		return nil, err
	}
	if e.embedded, err = embed.StartEtcd(embedCfg); err != nil {
		return nil, fmt.Errorf("start etcd on %s: %w", cfg.ClientURL, err)
	}
	if err := e.waitReady(ctx); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Etcd) config(cfg EtcdConfig) (*embed.Config, error) {
	client, err := url.Parse(cfg.ClientURL)
	if err != nil {
		return nil, fmt.Errorf("parse etcd client URL: %w", err)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create etcd directory: %w", err)
	}
	c := embed.NewConfig()
	c.Dir = filepath.Join(cfg.Dir, "data")
	c.LogLevel = "warn"
	c.LogOutputs = []string{filepath.Join(cfg.Dir, "etcd.log")}
	c.UnsafeNoFsync = true
	c.EnableGRPCGateway = false
	c.ListenClientUrls = []url.URL{*client}
	c.AdvertiseClientUrls = []url.URL{*client}
	c.ListenPeerUrls = nil // a single member has no peers: no port that could be taken
	// A single member always wins its election, so it need not wait long before it holds one.
	c.TickMs, c.ElectionMs = 20, 200
	c.ServiceRegister = e.register
	return c, nil
}

// register is called from a goroutine of etcd's, possibly after etcd reported that it is ready.
func (e *Etcd) register(s *grpc.Server) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.servers = append(e.servers, s)
}

func (e *Etcd) waitReady(ctx context.Context) error {
	select {
	case <-e.embedded.Server.ReadyNotify():
		return nil
	case err := <-e.embedded.Err():
		return fmt.Errorf("start etcd: %w", err)
	case <-e.embedded.Server.StopNotify():
		return errors.New("start etcd: it stopped before it was ready")
	case <-ctx.Done():
		return fmt.Errorf("wait for etcd: %w", ctx.Err())
	}
}
