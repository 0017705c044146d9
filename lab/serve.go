package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/twill-net/twill/lab/controlplane"
)

// The servers of Serve, and the file that says that one is ready.
const (
	serveEtcd = "etcd"
	serveAPI  = "apiserver"
	readyFile = "ready"
)

// Serve runs a server of the lab in this process until ctx is done. The lab starts it in the underlay's
// namespace, so that even its start-up probes need no way out of there. The arguments are
// "etcd DIR CLIENT-URL" or "apiserver DIR BINARY ADDRESS ETCD-URL".
func Serve(ctx context.Context, args []string) error {
	switch {
	case len(args) == 3 && args[0] == serveEtcd:
		err := controlplane.RunEtcd(ctx, controlplane.EtcdConfig{Dir: args[1], ClientURL: args[2], Ready: func() {
			// Who waits for the file notices when it does not come.
			_ = markReady(args[1])
		}})
		return errors.Join(err, unmarkReady(args[1]))
	case len(args) == 5 && args[0] == serveAPI:
		return serveAPIServer(ctx, args[1], args[2], args[3], args[4])
	}
	return fmt.Errorf("serve %q: want etcd DIR CLIENT-URL, or apiserver DIR BINARY ADDRESS ETCD-URL", args)
}

func serveAPIServer(ctx context.Context, dir, binary, address, etcdURL string) error {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return err
	}
	api, err := controlplane.StartAPIServer(ctx, controlplane.APIServerConfig{
		Binary: binary, Dir: dir, EtcdEndpoints: []string{etcdURL}, Listen: netip.AddrPortFrom(addr, apiPort),
		Users:     []controlplane.User{{Name: agentUser, Groups: []string{"system:serviceaccounts"}}},
		Pdeathsig: true,
		Progress:  func(line string) { fmt.Fprintln(os.Stderr, line) },
	})
	if err != nil {
		return err
	}
	err = api.ApplyAgentRBAC(ctx, agentUser)
	if err == nil {
		err = os.Rename(api.KubeconfigFile(agentUser), kubeconfigFile(dir))
	}
	if err == nil {
		err = markReady(dir)
	}
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, unmarkReady(dir), api.Close())
}

// kubeconfigFile is the agents' kubeconfig.
func kubeconfigFile(dir string) string { return filepath.Join(dir, "agent.kubeconfig") }

func markReady(dir string) error { return os.WriteFile(filepath.Join(dir, readyFile), nil, 0o644) }

func unmarkReady(dir string) error {
	if err := os.Remove(filepath.Join(dir, readyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
