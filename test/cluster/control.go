package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/controlplane"
)

// StopAPI ends the API server and keeps it down until StartAPI.
func (s Spec) StopAPI() error {
	if err := os.WriteFile(s.path(holdFile), nil, 0o644); err != nil {
		return err
	}
	api, err := controlplane.OpenAPIServer(s.APIDir())
	if err != nil {
		return err
	}
	return api.Close()
}

// StartAPI lets the API server come up again and waits for it.
func (s Spec) StartAPI(ctx context.Context) error {
	if err := os.Remove(s.path(holdFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.await(ctx, "the API server", time.Minute, func() (bool, error) {
		_, err := s.Kubectl(ctx, "get", "--raw=/readyz")
		return err == nil, err
	})
}

// KillContainer sends SIGKILL to a container of namespace kube-twill's pod on a node, as the kernel does that runs
// out of memory; kubelet starts it again.
func (s Spec) KillContainer(ctx context.Context, node, container string) error {
	out, err := s.Kubectl(
		ctx,
		"-n",
		"kube-twill",
		"get",
		"pods",
		"--field-selector=spec.nodeName="+node,
		"--output=json",
	)
	if err != nil {
		return err
	}
	var list struct {
		Items []struct {
			Status struct {
				ContainerStatuses []struct{ Name, ContainerID string }
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return fmt.Errorf("read the list of pods: %w", err)
	}
	for _, pod := range list.Items {
		for _, c := range pod.Status.ContainerStatuses {
			if c.Name == container {
				_, id, _ := strings.Cut(c.ContainerID, "://")
				return s.ctr(ctx, node, "tasks", "kill", "--signal", "SIGKILL", id)
			}
		}
	}
	return fmt.Errorf("%s has no container %s", node, container)
}

// ctr is containerd's tool on a node.
func (s Spec) ctr(ctx context.Context, node string, args ...string) error {
	kubelet, err := controlplane.FindBinary("kubelet")
	if err != nil {
		return err
	}
	socket := filepath.Join(s.nodeDir(node), "run", "containerd", "containerd.sock")
	args = append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)
	out, err := exec.CommandContext(ctx, filepath.Join(filepath.Dir(filepath.Dir(kubelet)), "containerd", "ctr"), args...).
		CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr on %s: %w: %s", node, err, out)
	}
	return nil
}

// KillProgram ends a node's containerd, kubelet or kube-proxy at once; the node's first process starts it again.
func (s Spec) KillProgram(name, program string) error { return s.Signal(name, program, unix.SIGKILL) }

// Signal sends a signal to a node's containerd, kubelet or kube-proxy.
func (s Spec) Signal(name, program string, signal unix.Signal) error {
	init, err := s.NodeProcess(name)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", init.PID)) // by the thread that forked
	for _, f := range files {
		data, _ := os.ReadFile(f)
		for _, field := range strings.Fields(string(data)) {
			line, _ := os.ReadFile("/proc/" + field + "/cmdline")
			pid, badPID := strconv.Atoi(field)
			if first, _, _ := strings.Cut(string(line), "\x00"); badPID == nil && filepath.Base(first) == program {
				return unix.Kill(pid, signal)
			}
		}
	}
	return errors.Join(err, fmt.Errorf("%s runs no %s", name, program))
}

// Reserved is the addresses that a node's CNI plugin holds for pods of the network cbr0.
func (s Spec) Reserved(node string) ([]string, error) {
	entries, err := os.ReadDir(s.NodeFiles(node, "var/lib/cni/networks/cbr0"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var addrs []string
	for _, e := range entries {
		if strings.Contains(e.Name(), ".") && !strings.HasPrefix(e.Name(), "last_") &&
			!strings.HasPrefix(e.Name(), ".") ||
			strings.Contains(e.Name(), ":") {
			addrs = append(addrs, e.Name())
		}
	}
	return addrs, err
}

// Import gives a node the images of an archive, see WriteImages.
func (s Spec) Import(ctx context.Context, node, archive string) error {
	return s.ctr(ctx, node, "images", "import", "--local", archive)
}

// ImportPinned is Import for an image that manifests name with its digest.
func (s Spec) ImportPinned(ctx context.Context, node, archive, name string) error {
	return s.ctr(ctx, node, "images", "import", "--local", "--digests", "--base-name", name, archive)
}
