package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/atomicfile"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/file"
)

// store is where the agents keep their leases.
type store interface {
	start(context.Context) error           // what runs already stays
	flags(*Node) []string                  // by which an agent finds it
	register(context.Context, *Node) error // before the node's agent starts
	forget(context.Context, *Node) error   // the node's lease
}

func newStore(l *Lab) store {
	switch l.spec.Store {
	case Kube:
		return &kubeStore{lab: l}
	case File:
		return &fileStore{lab: l}
	}
	return &etcdStore{lab: l}
}

func (l *Lab) netConfFile() string { return filepath.Join(l.dir, "net-conf.json") }

func (l *Lab) writeNetConf() error {
	data, err := l.spec.netConf()
	if err != nil {
		return fmt.Errorf("encode the net config: %w", err)
	}
	if err := os.WriteFile(l.netConfFile(), data, 0o644); err != nil {
		return fmt.Errorf("write the net config: %w", err)
	}
	return nil
}

// SetNetConf gives the agents another net-conf.json from their next start on.
func (l *Lab) SetNetConf(ctx context.Context, conf []byte) error {
	if err := os.WriteFile(l.netConfFile(), conf, 0o644); err != nil {
		return fmt.Errorf("write the net config: %w", err)
	}
	if s, ok := l.store.(*etcdStore); ok {
		return s.put(ctx, "/config", conf)
	}
	return nil
}

// routerAddr is the address by which all nodes reach the servers that run on the router.
func (l *Lab) routerAddr() netip.Addr { return l.spec.links(1)[0].router.Addr() }

// runServer starts a server in the underlay's namespace and returns when it is ready. One that runs already stays.
func (l *Lab) runServer(
	ctx context.Context,
	name, dir string,
	command []string,
	ready func(context.Context) error,
) error {
	var p host.Process
	l.view(func(s *state) { p = s.Servers[name] })
	if p.Running() {
		return nil
	}
	l.progress("store: starting " + name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of %s: %w", name, err)
	}
	log := filepath.Join(l.dir, "logs", name+".log")
	p, err := l.underlay.Start(host.Command{Path: command[0], Args: command[1:], Env: l.environment(), Log: log})
	if err != nil {
		return err
	}
	if err := l.change(func(s *state) { s.Servers[name] = p }); err != nil {
		return errors.Join(err, p.Kill())
	}
	err = poll(ctx, pollServers, func() (bool, error) {
		err := ready(ctx)
		if err != nil && !p.Running() {
			return false, errors.New("it has ended")
		}
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w\n%s", name, err, tail(log, 8))
	}
	return nil
}

// fileStore is a JSON file that all agents share; see subnet/file.
type fileStore struct{ lab *Lab }

func (s *fileStore) path() string { return filepath.Join(s.lab.dir, "leases.json") }

func (s *fileStore) start(context.Context) error { return nil }

func (s *fileStore) flags(*Node) []string {
	return []string{"--lease-file=" + s.path(), "--net-config-path=" + s.lab.netConfFile()}
}

// register keeps the site's subnets for the node: a lease that stands there before its agent comes.
func (s *fileStore) register(_ context.Context, n *Node) error {
	lease := subnet.Lease{Node: n.Name, Backend: n.lab.spec.Backend}
	for i, p := range n.site().Subnets {
		lease.Stacks = append(lease.Stacks, subnet.Stack{Subnet: p, Underlay: n.Underlay()[i]})
	}
	if len(lease.Stacks) == 0 {
		return nil
	}
	return s.edit(func(leases []subnet.Lease) []subnet.Lease {
		return append(slices.DeleteFunc(leases, func(l subnet.Lease) bool { return l.Node == n.Name }), lease)
	})
}

func (s *fileStore) forget(_ context.Context, n *Node) error {
	return s.edit(func(leases []subnet.Lease) []subnet.Lease {
		return slices.DeleteFunc(leases, func(l subnet.Lease) bool { return l.Node == n.Name })
	})
}

// EditLeases changes the leases of a lab with Store file, as another program would that shares the file.
func (l *Lab) EditLeases(change func([]subnet.Lease) []subnet.Lease) error {
	return (&fileStore{lab: l}).edit(change)
}

// edit takes the lock that the agents' stores take.
func (s *fileStore) edit(change func([]subnet.Lease) []subnet.Lease) error {
	lock, err := os.OpenFile(s.path()+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("lock the leases: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the leases: %w", err)
	}
	data, err := os.ReadFile(s.path())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the leases: %w", err)
	}
	var leases []subnet.Lease
	if err == nil {
		if leases, _, err = file.Parse(data); err != nil {
			return err
		}
	}
	if data, err = file.Format(change(leases)); err != nil {
		return err
	}
	if err := atomicfile.Write(s.path(), data, 0o644); err != nil {
		return fmt.Errorf("write the leases: %w", err)
	}
	return nil
}
