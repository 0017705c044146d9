package scale

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testall"
)

var (
	agentPath = flag.String("agent", "", "the agent's binary; one not named twilld gets flannel's flags only; empty: this checkout's")
	peers     = flag.Int("peers", 1000, "virtual nodes beside the agent's own")
	dual      = flag.Bool("dual", false, "two address families")
	spread    = flag.Bool("spread", false, "SpreadMetrics in the network config")
	store     = flag.String("store", "", "Store in the network config")
)

// dir is the same in every run, so that a run ends what a crashed one left.
const dir = "/run/twill/scale"

// bothStores has nodes publish Lease objects whatever -store says.
var bothStores bool

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("network namespaces need root: nothing is measured")
		return 0
	}
	unlock, err := alone()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer unlock()
	defer shared.close()
	return m.Run()
}

// alone waits for another run to end.
func alone() (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// shared is the cluster of all benchmarks: thousands of Node objects are made once.
var shared sharedCluster

type sharedCluster struct {
	once    sync.Once
	cluster *Cluster
	nodes   int // that have joined
	err     error
}

// open returns the cluster with as many peers as there should be now, which are never fewer than before.
func (s *sharedCluster) open(ctx context.Context) (*Cluster, error) {
	s.once.Do(func() { s.err = s.build(ctx) })
	if s.err == nil && s.nodes <= *peers {
		s.err = s.cluster.Join(ctx, s.nodes, *peers+1)
		s.nodes = *peers + 1
	}
	return s.cluster, s.err
}

func (s *sharedCluster) build(ctx context.Context) (err error) {
	if err := os.RemoveAll(filepath.Join(dir, "etcd")); err != nil {
		return err
	}
	if *agentPath == "" {
		*agentPath = filepath.Join(dir, "twilld")
		out, err := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", *agentPath, "github.com/twill-net/twill/clouds/cmd/twilld").CombinedOutput()
		if err != nil {
			return fmt.Errorf("build the agent: %w: %s", err, out)
		}
	}
	s.cluster, err = NewCluster(context.WithoutCancel(ctx), dir, *dual, *store != "" || bothStores)
	return err
}

func (s *sharedCluster) close() {
	if s.cluster != nil {
		_ = s.cluster.Close()
	}
	_ = os.RemoveAll(dir)
}

// rig is what one benchmark works with: the cluster, a machine and its kernel's changes.
type rig struct {
	b       testing.TB
	ctx     context.Context
	cluster *Cluster
	machine *Machine
	watch   *Watch
	next    int // the node that joins next
}

func newRig(b testing.TB) *rig {
	b.Helper()
	testall.Needs(b, "a built kube-apiserver")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	b.Cleanup(cancel)
	r := &rig{b: b, ctx: ctx}
	var err error
	r.cluster, err = shared.open(ctx)
	r.must(err)
	r.machine, err = r.cluster.NewMachine(ctx, "twscale")
	r.must(err)
	b.Cleanup(func() { r.machine.Close() })
	r.must(r.machine.Configure(Setting{Store: *store, SpreadMetrics: *spread}))
	r.watch, err = r.machine.Watch()
	r.must(err)
	b.Cleanup(func() { r.watch.Close() })
	return r
}

func (r *rig) must(err error) {
	r.b.Helper()
	if err != nil {
		r.b.Fatal(err)
	}
}

// start runs the agent until the end of the benchmark and returns when every peer's route stands, and when that was.
func (r *rig) start() (*Agent, time.Duration) {
	r.b.Helper()
	return r.startAgent(*agentPath)
}

// startAgent is start for another binary.
func (r *rig) startAgent(path string) (*Agent, time.Duration) {
	r.b.Helper()
	a, err := r.machine.Start(path)
	r.must(err)
	r.b.Cleanup(func() { a.Kill() })
	last, err := r.watch.Until(r.ctx, a.Began, Routes(1, *peers+1)...)
	r.must(err)
	return a, last.Sub(a.Began)
}

// settle waits until the agent has been idle for a while.
func (r *rig) settle(a *Agent) {
	r.b.Helper()
	for before := time.Duration(-1); a.CPU()-before > 10*time.Millisecond; r.pause(time.Second) {
		before = a.CPU()
	}
}

func (r *rig) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.ctx.Done():
		r.b.Fatal(r.ctx.Err())
	}
}
