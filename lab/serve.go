package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/lab/fabric"
)

// The servers of a lab, and the file that says that the API server is ready.
const (
	etcdServer = "etcd"
	apiServer  = "apiserver"
	readyFile  = "ready"
)

// Serve runs one of the lab's servers until ctx is done: the API server, with the arguments DIR BINARY ADDRESS ETCD-URL, or
// with "cloud" and the backend's type the cloud. The lab starts this process in the underlay's namespace, so that even the
// start-up probes need no way out of there.
func Serve(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == cloudServer {
		return fabric.Serve(ctx, args[1])
	}
	if len(args) != 4 {
		return fmt.Errorf("serve %q: want DIR BINARY ADDRESS ETCD-URL, or cloud TYPE", args)
	}
	dir, binary, address, etcdURL := args[0], args[1], args[2], args[3]
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return err
	}
	api, err := controlplane.StartAPIServer(ctx, controlplane.APIServerConfig{
		Binary: binary, Dir: dir, EtcdEndpoints: []string{etcdURL}, Listen: netip.AddrPortFrom(addr, apiPort),
		Users:    []controlplane.User{{Name: agentUser, Groups: []string{"system:serviceaccounts"}}, {Name: proxyUser}},
		Progress: func(line string) { fmt.Fprintln(os.Stderr, line) },
	})
	if err != nil {
		return err
	}
	err = api.ApplyAgentRBAC(ctx, agentUser)
	if err == nil {
		err = os.Rename(api.KubeconfigFile(agentUser), kubeconfigFile(dir))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, readyFile), nil, 0o644)
	}
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, unmarkReady(dir), api.Close())
}

// kubeconfigFile is the agents' kubeconfig.
func kubeconfigFile(dir string) string { return filepath.Join(dir, "agent.kubeconfig") }

func unmarkReady(dir string) error {
	if err := os.Remove(filepath.Join(dir, readyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
