package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/host"
)

// state is what a later program needs to use a cluster and to remove it; it stands in cluster.json.
type state struct {
	Spec    Spec
	Control host.Process
}

const stateFile = "cluster.json"

// Open is the spec of the cluster in dir; an error that is fs.ErrNotExist: there is none.
func Open(dir string) (Spec, error) {
	var st state
	err := readJSON(filepath.Join(dir, stateFile), &st)
	return st.Spec, err
}

// Up makes the cluster and returns when the API server answers and every node has registered. What is up already
// stays; leftovers of a run that did not end well are removed first. Nodes become Ready only with a network.
func Up(ctx context.Context, s Spec, progress func(string)) error {
	s = s.withDefaults()
	if err := s.validate(); err != nil {
		return err
	}
	if s.running() {
		progress("the cluster is up")
		return nil
	}
	if err := Down(s); err != nil {
		return fmt.Errorf("remove what an earlier run left: %w", err)
	}
	if err := s.build(ctx, progress); err != nil {
		return errors.Join(err, Down(s))
	}
	return nil
}

func (s Spec) running() bool {
	var st state
	if readJSON(s.path(stateFile), &st) != nil || st.Spec != s || !st.Control.Running() {
		return false
	}
	for n := 1; n <= s.Nodes; n++ {
		if p, err := s.NodeProcess(s.NodeName(n)); err != nil || !p.Running() {
			return false
		}
	}
	return true
}

func (s Spec) build(ctx context.Context, progress func(string)) error {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	if err := s.images(ctx, progress); err != nil {
		return err
	}
	progress("networks: an underlay in namespaces " + s.Name + "-…")
	if err := s.buildUnderlay(); err != nil {
		return err
	}
	progress("control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler")
	if err := s.startControlPlane(ctx); err != nil {
		return err
	}
	for n := 1; n <= s.Nodes; n++ {
		progress(s.NodeName(n) + ": containerd, kubelet, kube-proxy")
		if err := errors.Join(s.writeNode(n), s.StartNode(n)); err != nil {
			return err
		}
	}
	return s.await(ctx, "every node to register", 3*time.Minute, func() (bool, error) {
		out, err := s.Kubectl(ctx, "get", "nodes", "--output=name")
		return err == nil && len(strings.Fields(out)) == s.Nodes, err
	})
}

// images makes what nodes import; twill's own only if nobody has put one there.
func (s Spec) images(ctx context.Context, progress func(string)) error {
	dir := s.path("images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := checkout()
	if err != nil {
		return err
	}
	progress("image " + PodImage)
	if err := s.podImage(ctx, root); err != nil {
		return err
	}
	dns := Image{Name: DNSImage, Entry: []string{"/coredns"}}
	if err := errors.Join(dns.Add(ctx, "/coredns", filepath.Join(root, "bin", "coredns")), dns.Write(filepath.Join(dir, "coredns.tar"))); err != nil {
		return fmt.Errorf("pack CoreDNS (build it with tools/coredns/build): %w", err)
	}
	if current(filepath.Join(dir, "twill.tar"), root) {
		return nil
	}
	progress("image " + TwillImage + " from the Dockerfile")
	return s.BuildTwill(ctx, root, TwillImage)
}

// podImage packs what the containers of tests run: test/cluster/cmd/pod, and Debian's iperf3.
func (s Spec) podImage(ctx context.Context, root string) error {
	program := s.path("pod")
	cmd := exec.CommandContext(
		ctx,
		"go",
		"build",
		"-trimpath",
		"-ldflags",
		"-s -w",
		"-o",
		program,
		"./test/cluster/cmd/pod",
	)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the pod program: %w: %s", err, out)
	}
	iperf, err := exec.LookPath("iperf3")
	if err != nil {
		return fmt.Errorf("pack iperf3 (install Debian's package): %w", err)
	}
	image := Image{Name: PodImage, Entry: []string{"/pod"}}
	if err := errors.Join(image.Add(ctx, "/pod", program), image.Add(ctx, "/usr/bin/iperf3", iperf)); err != nil {
		return err
	}
	return image.Write(s.path("images", "pod.tar"))
}

// BuildTwill builds the image of the Dockerfile, as the nodes know it, for the next node that starts.
func (s Spec) BuildTwill(ctx context.Context, root, image string) error {
	name, version, _ := strings.Cut(image, ":")
	cmd := exec.CommandContext(
		ctx,
		filepath.Join(root, "test", "cluster", "image"),
		name,
		version,
		s.path("images", "twill.tar"),
	)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", image, err, out)
	}
	return nil
}

// current reports whether the image is younger than every source of it.
func current(image, root string) bool {
	info, err := os.Stat(image)
	if err != nil {
		return false
	}
	younger := errors.New("younger")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // a file that somebody removes just now
		}
		name := d.Name()
		if d.IsDir() &&
			(path == filepath.Join(root, "bin") || path == filepath.Join(root, "test") || strings.HasPrefix(name, ".git")) {
			return filepath.SkipDir
		}
		source := strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") || name == "go.mod" ||
			name == "Dockerfile"
		if fi, err := d.Info(); source && err == nil && fi.ModTime().After(info.ModTime()) {
			return younger
		}
		return nil
	})
	return err == nil
}

// checkout is the root of the source, found from where the Kubernetes binaries are.
func checkout() (string, error) {
	kubelet, err := controlplane.FindBinary("kubelet")
	return filepath.Dir(filepath.Dir(filepath.Dir(kubelet))), err
}

// startControlPlane starts the process of RunControlPlane in the first node's network.
func (s Spec) startControlPlane(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := s.controlFiles("https://" + l.Addr().String()); err != nil {
		return err
	}
	log, err := os.OpenFile(s.path("control.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	self, err := executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "control-plane", s.path("spec.json"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p, err := startIn(s.host(s.NodeName(1)), cmd, log.Name())
	if err != nil {
		return fmt.Errorf("start the control plane: %w", err)
	}
	if err := writeJSON(s.path(stateFile), state{Spec: s, Control: p}); err != nil {
		return err
	}
	return s.await(ctx, "the API server", 3*time.Minute, func() (bool, error) {
		if !p.Running() {
			text, _ := os.ReadFile(log.Name())
			return false, fmt.Errorf("the control plane ended: %s", text)
		}
		_, err := s.Kubectl(ctx, "get", "--raw=/readyz")
		return err == nil, nil
	})
}

func (s Spec) controlFiles(url string) error {
	// The authority must be there before anybody is certified by it.
	if _, _, err := controlplane.IssueClient(s.APIDir(), "none"); err != nil {
		return err
	}
	return errors.Join(
		writeJSON(s.path("spec.json"), s),
		s.writeKubeconfig(s.Kubeconfig(), url, "twill-admin", "system:masters"),
		s.writeKubeconfig(s.path("manager.kubeconfig"), s.apiURL(), "system:kube-controller-manager"),
		s.writeKubeconfig(s.path("scheduler.kubeconfig"), s.apiURL(), "system:kube-scheduler"),
	)
}

// executable is the executable that can be a node and a control plane.
func executable() (string, error) {
	if given := os.Getenv("TWILL_CLUSTER_BIN"); given != "" {
		return given, nil // a test binary is not it
	}
	return os.Executable()
}

// Kubectl runs kubectl as the administrator and returns what it printed; an error has what it complained of.
func (s Spec) Kubectl(ctx context.Context, args ...string) (string, error) {
	return s.KubectlIn(ctx, nil, args...)
}

// KubectlBinary is the kubectl of tools/kube, of the cluster's own version.
func KubectlBinary() (string, error) { return controlplane.FindBinary("kubectl") }

// KubectlIn is Kubectl with an input.
func (s Spec) KubectlIn(ctx context.Context, in io.Reader, args ...string) (string, error) {
	program, err := KubectlBinary()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"--kubeconfig=" + s.Kubeconfig()}, args...)...)
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf(
			"kubectl %s: %w: %s",
			strings.Join(args, " "),
			err,
			strings.TrimSpace(stderr.String()),
		)
	}
	return stdout.String(), nil
}

// await repeats ok until it is true; the error tells what it said last.
func (s Spec) await(ctx context.Context, what string, limit time.Duration, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		done, err := ok()
		if done {
			return nil
		}
		if !wait(ctx, 300*time.Millisecond) {
			return fmt.Errorf("waited %v for %s: %w", limit, what, errors.Join(ctx.Err(), err))
		}
	}
}

// Down ends and removes everything of the cluster; logs, images and keys stay for the next one. Absence is success.
func Down(s Spec) error {
	var st state
	if err := readJSON(s.path(stateFile), &st); errors.Is(err, fs.ErrNotExist) {
		return s.removeUnderlay()
	} else if err != nil {
		return err
	}
	old := st.Spec
	var errs error
	for n := 1; n <= old.Nodes; n++ {
		errs = errors.Join(errs, old.StopNode(old.NodeName(n)))
	}
	errs = errors.Join(errs, st.Control.Stop(context.Background(), 20*time.Second), old.removeUnderlay())
	for _, name := range []string{"nodes", "etcd", holdFile} {
		errs = errors.Join(errs, os.RemoveAll(old.path(name)))
	}
	return errors.Join(errs, os.RemoveAll(old.path(stateFile)))
}
