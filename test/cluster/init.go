package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Init is the first process of a node: it makes the node's file systems, imports the images, and keeps containerd,
// kubelet and kube-proxy running until it is killed.
func Init(path string) error {
	if os.Getpid() != 1 {
		return errors.New("init is a node's first process: start nodes with up")
	}
	var spec nodeSpec
	if err := readJSON(path, &spec); err != nil {
		return err
	}
	if err := spec.mounts(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := os.Setenv("PATH", strings.Join(append(spec.PathDirs, os.Getenv("PATH")), ":")); err != nil {
		return err
	}
	return newSupervisor(spec).run()
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// mounts makes /etc, /opt and /var overlays of the machine's, which keep what the node writes; /run, containerd's
// files, /proc and /sys are the node's own. Overlays cannot stand on overlays, so containerd's files are a bind mount.
func (n nodeSpec) mounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := n.mountSys(); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range []string{"etc", "opt", "var"} {
		if err := n.overlay(dir); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/var/lib/containerd", "/opt/cni/bin", "/etc/cni/net.d", "/var/lib/cni", "/var/log/pods"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for from, to := range map[string]string{"containerd": "/var/lib/containerd", "run": "/run"} {
		if err := unix.Mount(filepath.Join(n.Dir, from), to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", to, err)
		}
	}
	// Volumes with mount propagation need a shared root, as systemd makes it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	return os.MkdirAll("/run/lock", 0o755)
}

// mountSys makes /sys/class/net and the BPF file system the node's own, and keeps the control groups, which are mounted
// below it.
func (n nodeSpec) mountSys() error {
	const cgroups = "/sys/fs/cgroup"
	keep := filepath.Join(n.Dir, "cgroup")
	if err := os.MkdirAll(keep, 0o755); err != nil {
		return err
	}
	for _, m := range []struct {
		from, to, kind string
		flags          uintptr
	}{{cgroups, keep, "", unix.MS_BIND | unix.MS_REC}, {"sysfs", "/sys", "sysfs", 0}, {keep, cgroups, "", unix.MS_BIND | unix.MS_REC}} {
		if err := unix.Mount(m.from, m.to, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.to, err)
		}
	}
	const bpf = "/sys/fs/bpf" // as systemd mounts it
	if err := unix.Mount("bpf", bpf, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount %s: %w", bpf, err)
	}
	return unix.Unmount(keep, unix.MNT_DETACH)
}

func (n nodeSpec) overlay(dir string) error {
	upper, work := filepath.Join(n.Dir, "fs", dir), filepath.Join(n.Dir, "fs", "."+dir)
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=/%s,upperdir=%s,workdir=%s", dir, upper, work)
	if err := unix.Mount("overlay", "/"+dir, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay on /%s: %w", dir, err)
	}
	return nil
}

// supervisor keeps programs running. It alone waits for children: its own, and those that lost their parents.
type supervisor struct {
	spec     nodeSpec
	programs []*program
}

type program struct {
	name string
	args []string
	pid  int
}

// restartAfter is the pause before a program that ended starts again.
const restartAfter = time.Second

func newSupervisor(n nodeSpec) *supervisor {
	return &supervisor{spec: n, programs: []*program{
		{
			name: "containerd",
			args: n.Container,
		}, {name: "kubelet", args: n.Kubelet}, {name: "kube-proxy", args: n.Proxy},
	}}
}

func (s *supervisor) run() error {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD)
	if err := s.start(s.programs[0]); err != nil {
		return err
	}
	if err := s.importImages(); err != nil {
		return err
	}
	tick := time.NewTicker(restartAfter)
	defer tick.Stop()
	for {
		for _, p := range s.programs {
			if p.pid == 0 {
				if err := s.start(p); err != nil {
					fmt.Println(err)
				}
			}
		}
		select {
		case <-signals:
			s.reap()
			continue
		case <-tick.C:
			s.reap()
		}
	}
}

// start runs a program in a group of its own, and its output goes to a log of its own.
func (s *supervisor) start(p *program) error {
	log, err := os.OpenFile(filepath.Join(s.spec.Dir, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	proc, err := os.StartProcess(p.args[0], p.args, &os.ProcAttr{
		Files: []*os.File{nil, log, log}, Env: os.Environ(), Dir: "/", Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.pid = proc.Pid
	fmt.Printf("%s started as %d\n", p.name, p.pid)
	return proc.Release()
}

func (s *supervisor) reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 || err != nil {
			return
		}
		for _, p := range s.programs {
			if p.pid == pid {
				fmt.Printf("%s ended\n", p.name)
				p.pid = 0
			}
		}
	}
}

// importImages waits for containerd and gives it the images, those that it does not have from an earlier boot.
func (s *supervisor) importImages() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	for exec.Command("ctr", "version").Run() != nil {
		if !wait(ctx, 100*time.Millisecond) {
			return errors.New("containerd did not answer within 3 minutes: see its log")
		}
	}
	for _, image := range s.spec.Images {
		stamp := filepath.Join(s.spec.Dir, "imported-"+filepath.Base(image))
		if newer(stamp, image) {
			continue
		}
		if out, err := exec.Command("ctr", "--namespace", "k8s.io", "images", "import", "--local", image).CombinedOutput(); err != nil {
			return fmt.Errorf("import %s: %w: %s", image, err, out)
		}
		if err := os.WriteFile(stamp, nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func newer(a, b string) bool {
	fa, errA := os.Stat(a)
	fb, errB := os.Stat(b)
	return errA == nil && errB == nil && fa.ModTime().After(fb.ModTime())
}
