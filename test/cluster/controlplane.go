package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/internal/controlplane"
)

// RunControlPlane runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler in the network of the calling
// process until ctx is done, and forwards what comes in on l to the API server: l was opened in the machine's own
// network, and a socket belongs to the network in which it was opened.
func RunControlPlane(ctx context.Context, s Spec, l net.Listener) error {
	etcd, err := controlplane.StartEtcd(ctx, s.path("etcd"), "")
	if err != nil {
		return err
	}
	defer etcd.Close()
	cfg, err := s.apiConfig(etcd.Endpoints())
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return forward(ctx, l, netip.AddrPortFrom(s.Underlay(1)[0], apiPort)) })
	group.Go(func() error { return s.keepAPI(ctx, cfg) })
	group.Go(func() error { return s.keepProgram(ctx, "kube-controller-manager", s.managerFlags()) })
	group.Go(func() error {
		return s.keepProgram(
			ctx,
			"kube-scheduler",
			[]string{"--kubeconfig=" + s.path("scheduler.kubeconfig"), "--leader-elect=false"},
		)
	})
	return group.Wait()
}

func (s Spec) apiConfig(etcd []string) (controlplane.APIServerConfig, error) {
	cert, key, err := controlplane.IssueClient(s.APIDir(), "kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return controlplane.APIServerConfig{}, err
	}
	certFile, keyFile := filepath.Join(
		s.APIDir(),
		"kubelet-client.crt",
	), filepath.Join(
		s.APIDir(),
		"kubelet-client.key",
	)
	err = errors.Join(os.WriteFile(certFile, cert, 0o600), os.WriteFile(keyFile, key, 0o600))
	return controlplane.APIServerConfig{
		Dir: s.APIDir(), EtcdEndpoints: etcd, Listen: netip.AddrPortFrom(netip.IPv6Unspecified(), apiPort),
		Advertise: s.Underlay(1)[0], ServiceCIDRs: s.inFamilies(ServiceNetworks),
		Flags: []string{"--kubelet-client-certificate=" + certFile, "--kubelet-client-key=" + keyFile,
			"--kubelet-preferred-address-types=InternalIP", "--service-node-port-range=30000-32767"},
	}, err
}

func (s Spec) managerFlags() []string {
	flags := []string{
		"--kubeconfig=" + s.path("manager.kubeconfig"), "--leader-elect=false", "--use-service-account-credentials",
		"--service-account-private-key-file=" + filepath.Join(s.APIDir(), "sa.key"),
		"--root-ca-file=" + filepath.Join(s.APIDir(), "ca.crt"),
		"--node-monitor-grace-period=20s",
	}
	if s.SelfLease {
		return append(flags, "--allocate-node-cidrs=false")
	}
	return append(flags, "--allocate-node-cidrs", "--cluster-cidr="+join(s.inFamilies(PodNetworks)),
		"--service-cluster-ip-range="+join(s.inFamilies(ServiceNetworks)))
}

// holdFile keeps the API server down as long as it exists.
const holdFile = "api-down"

const lookEvery = 200 * time.Millisecond

// keepAPI starts the API server, and again whenever it ended.
func (s Spec) keepAPI(ctx context.Context, cfg controlplane.APIServerConfig) error {
	for ctx.Err() == nil {
		if _, err := os.Stat(s.path(holdFile)); !errors.Is(err, fs.ErrNotExist) {
			wait(ctx, lookEvery)
			continue
		}
		api, err := controlplane.StartAPIServer(ctx, cfg)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for ctx.Err() == nil && api.Alive() {
			wait(ctx, lookEvery)
		}
		if err := api.Close(); err != nil {
			return err
		}
	}
	return nil
}

// keepProgram runs a Kubernetes program, and again whenever it ended.
func (s Spec) keepProgram(ctx context.Context, name string, flags []string) error {
	path, err := controlplane.FindBinary(name)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		// Without the API server they end at once; the log would fill.
		if api, err := controlplane.OpenAPIServer(s.APIDir()); err == nil && api.Alive() {
			if err := s.runProgram(ctx, name, path, flags); err != nil {
				return err
			}
		}
		wait(ctx, time.Second)
	}
	return nil
}

func (s Spec) runProgram(ctx context.Context, name, path string, flags []string) error {
	log, err := os.OpenFile(s.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, path, flags...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	_ = cmd.Wait() // how it ended stands in its log
	return nil
}

// forward copies connections until ctx is done.
func forward(ctx context.Context, l net.Listener, to netip.AddrPort) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept a connection for the API server: %w", err)
		}
		go func() {
			defer c.Close()
			up, err := net.DialTimeout("tcp", to.String(), 5*time.Second)
			if err != nil {
				return
			}
			defer up.Close()
			go func() {
				_, _ = io.Copy(up, c)
				up.Close()
			}()
			_, _ = io.Copy(c, up)
		}()
	}
}

// wait pauses, and reports whether ctx let it.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
