package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/host"
)

// nodeSpec is all that a node's first process needs to know; it stands in the node's directory.
type nodeSpec struct {
	Name      string
	Dir       string   // the node's own
	Images    []string // archives to import before kubelet starts
	PathDirs  []string // where programs are, before the rest of PATH
	Kubelet   []string // command lines
	Proxy     []string
	Container []string
}

// writeNode makes a node's directory with everything that its programs read. What the node keeps over reboots stays.
func (s Spec) writeNode(n int) error {
	name := s.NodeName(n)
	dir := s.nodeDir(name)
	for _, sub := range []string{"run", "containerd", "conf"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	conf := func(file string) string { return filepath.Join(dir, "conf", file) }
	err := errors.Join(
		s.writeKubeconfig(conf("kubelet.kubeconfig"), s.apiURL(), "system:node:"+name, "system:nodes"),
		s.writeKubeconfig(conf("proxy.kubeconfig"), s.apiURL(), "system:kube-proxy"),
		writeJSON(conf("kubelet.yaml"), s.kubeletConfig()),
		writeJSON(conf("proxy.yaml"), s.proxyConfig(name, conf("proxy.kubeconfig"))),
		os.WriteFile(conf("containerd.toml"), []byte(containerdConfig), 0o644),
	)
	if err != nil {
		return err
	}
	spec, err := s.nodeSpec(n, conf)
	if err != nil {
		return err
	}
	return writeJSON(conf("node.json"), spec)
}

func (s Spec) nodeSpec(n int, conf func(string) string) (nodeSpec, error) {
	kubelet, err := controlplane.FindBinary("kubelet")
	if err != nil {
		return nodeSpec{}, err
	}
	proxy, err := controlplane.FindBinary("kube-proxy")
	if err != nil {
		return nodeSpec{}, err
	}
	containerd := filepath.Join(filepath.Dir(filepath.Dir(kubelet)), "containerd")
	images, err := filepath.Glob(s.path("images", "*.tar"))
	name := s.NodeName(n)
	return nodeSpec{
		Name: name, Dir: s.nodeDir(name), Images: images, PathDirs: []string{containerd},
		Container: []string{filepath.Join(containerd, "containerd"), "--config", conf("containerd.toml")},
		Kubelet: []string{kubelet, "--config=" + conf("kubelet.yaml"), "--kubeconfig=" + conf("kubelet.kubeconfig"),
			"--hostname-override=" + name, "--node-ip=" + addresses(s.Underlay(n))},
		Proxy: []string{proxy, "--config=" + conf("proxy.yaml"), "--hostname-override=" + name},
	}, err
}

// StartNode starts a node's first process in the node's network and in new mount, PID, UTS and IPC namespaces.
func (s Spec) StartNode(n int) error {
	name := s.NodeName(n)
	dir := s.nodeDir(name)
	log, err := os.OpenFile(filepath.Join(dir, "node.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	self, err := executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "init", filepath.Join(dir, "conf", "node.json"))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin", "HOME=/root"}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
	p, err := startIn(s.host(name), cmd, dir)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	return writeJSON(filepath.Join(dir, "process.json"), p)
}

// startIn starts cmd in the namespace and lets it live on.
func startIn(h host.Host, cmd *exec.Cmd, dir string) (host.Process, error) {
	if err := h.Do(cmd.Start); err != nil {
		return host.Process{}, err
	}
	p, err := host.Find(cmd.Process.Pid)
	p.Log = dir
	go func() { _ = cmd.Wait() }() // reap it, if this process lives that long
	return p, err
}

// NodeProcess is a node's first process.
func (s Spec) NodeProcess(name string) (host.Process, error) {
	var p host.Process
	err := readJSON(filepath.Join(s.nodeDir(name), "process.json"), &p)
	if errors.Is(err, fs.ErrNotExist) {
		return host.Process{}, nil
	}
	return p, err
}

// StopNode ends everything on a node at once, as a power failure does: with its first process the kernel ends all
// others of its PID namespace.
func (s Spec) StopNode(name string) error {
	p, err := s.NodeProcess(name)
	if err != nil {
		return err
	}
	cgroups := s.taskNames(name)
	if err := p.Kill(); err != nil {
		return err
	}
	return removeCgroups(cgroups)
}

// taskNames is the containers of a node, by which their control groups are named.
func (s Spec) taskNames(name string) []string {
	var names []string
	entries, _ := os.ReadDir(
		filepath.Join(s.nodeDir(name), "run", "containerd", "io.containerd.runtime.v2.task", "k8s.io"),
	)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// removeCgroups removes the empty control groups of containers that are gone.
func removeCgroups(names []string) error {
	var errs error
	for _, name := range names {
		for _, pattern := range []string{"/sys/fs/cgroup/*/k8s.io/" + name, "/sys/fs/cgroup/k8s.io/" + name} {
			dirs, _ := filepath.Glob(pattern)
			for _, dir := range dirs {
				errs = errors.Join(errs, removeCgroup(dir))
			}
		}
	}
	return errs
}

// removeCgroup waits a moment: the kernel ends processes after it said that their namespace is gone.
func removeCgroup(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !wait(ctx, 20*time.Millisecond) {
			return fmt.Errorf("remove control group %s: %w", dir, err)
		}
	}
}

// Reboot ends a node and its network as a power failure does, and starts it again. What is in /run is lost, the rest
// stays.
func (s Spec) Reboot(n int) error {
	name := s.NodeName(n)
	if err := s.StopNode(name); err != nil {
		return err
	}
	if err := s.host(name).Delete(); err != nil {
		return err
	}
	run := filepath.Join(s.nodeDir(name), "run")
	if err := errors.Join(os.RemoveAll(run), os.MkdirAll(run, 0o755)); err != nil {
		return err
	}
	if err := s.replug(n); err != nil {
		return err
	}
	return s.StartNode(n)
}
