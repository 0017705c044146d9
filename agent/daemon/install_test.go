package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/twill-net/twill/agent/install"
)

func TestInstallPlugins(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "twill"), []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(to, "twill")
	if err := os.WriteFile(old, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	running, err := os.Open(old)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	if err := installPlugins(install.Plugins{From: from, To: to}, io.Discard); err != nil {
		t.Fatal(err)
	}
	if data, _ := io.ReadAll(running); string(data) != "old" {
		t.Errorf("a program that runs was overwritten with %q", data)
	}
	data, err := os.ReadFile(old)
	info, statErr := os.Stat(old)
	if err != nil || statErr != nil || string(data) != "new" || info.Mode().Perm() != 0o755 {
		t.Errorf("got %q with mode %v, %v %v", data, info.Mode(), err, statErr)
	}
	if list, _ := os.ReadDir(to); len(list) != 2 { // with the list of what is Twill's
		t.Errorf("leftovers: %v", list)
	}
	if err := installPlugins(install.Plugins{From: filepath.Join(from, "none"), To: to}, io.Discard); err == nil {
		t.Error("no plugins, and no error")
	}
}

// manifestCapabilities are those that the manifest gives a container.
func manifestCapabilities(t *testing.T, container string) map[string]bool {
	t.Helper()
	data, err := os.ReadFile("../../deploy/base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type part struct {
		Name            string
		SecurityContext struct{ Capabilities struct{ Add []string } }
	}
	var d struct {
		Spec struct {
			Template struct {
				Spec struct{ InitContainers, Containers []part }
			}
		}
	}
	if err := yaml.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, c := range append(d.Spec.Template.Spec.InitContainers, d.Spec.Template.Spec.Containers...) {
		for _, name := range c.SecurityContext.Capabilities.Add {
			all[name] = all[name] || c.Name == container
		}
	}
	return all
}

// capabilities are the numbers of those that the manifest names.
var capabilities = map[string]uintptr{"DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW}

// bounded starts a command whose processes never have other capabilities than these.
func bounded(c *exec.Cmd, keep map[string]bool) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for number := range uintptr(unix.CAP_LAST_CAP + 1) {
			kept := false
			for name, on := range keep {
				kept = kept || on && capabilities[name] == number
			}
			if kept {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, number, 0, 0, 0); err != nil {
				done <- fmt.Errorf("drop capability %d: %w", number, err)
				return
			}
		}
		done <- c.Start()
	}()
	return errors.Join(<-done, c.Wait())
}

// TestInstallsWhereAnotherUserOwns has both containers work with the capabilities that the manifest
// gives them, in directories that belong to another user, as kubespray makes them. Without
// DAC_OVERRIDE the error says whose they are.
func TestInstallsWhereAnotherUserOwns(t *testing.T) {
	if dir := os.Getenv("TWILL_TEST_DIR"); dir != "" {
		keepInstalled(t, dir)
		return
	}
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root, to give directories to others")
		}
		t.Skip("needs root")
	}
	for _, container := range []string{"install-cni", "twilld"} {
		for _, with := range []bool{true, false} {
			keep := manifestCapabilities(t, container)
			if !keep["DAC_OVERRIDE"] {
				t.Errorf("the container %s does not have DAC_OVERRIDE", container)
			}
			keep["DAC_OVERRIDE"] = keep["DAC_OVERRIDE"] && with
			dir := othersDir(t)
			c := exec.Command("/proc/self/exe", "-test.run=^TestInstallsWhereAnotherUserOwns$", "-test.v")
			var out bytes.Buffer
			c.Stdout, c.Stderr, c.Env = &out, &out, append(os.Environ(), "TWILL_TEST_DIR="+dir)
			err := bounded(c, keep)
			told := regexp.MustCompile(regexp.QuoteMeta(dir) + `/(bin|net\.d) belongs to user 996 and has the mode 0755, .* capability DAC_OVERRIDE`)
			if with && err != nil {
				t.Errorf("%s with the manifest's capabilities: %v\n%s", container, err, out.Bytes())
			}
			if !with && (err == nil || len(told.FindAll(out.Bytes(), -1)) != 2) {
				t.Errorf("%s without DAC_OVERRIDE: %v, want an error that explains both directories\n%s", container, err, out.Bytes())
			}
		}
	}
}

// othersDir makes a directory with bin and net.d of user 996.
func othersDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	err := os.Chmod(filepath.Dir(dir), 0o755)
	for _, name := range []string{"bin", "net.d"} {
		path := filepath.Join(dir, name)
		err = errors.Join(err, os.Mkdir(path, 0o755), os.Chmod(path, 0o755), os.Chown(path, 996, 996))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// keepInstalled is what the containers do in the directories of dir.
func keepInstalled(t *testing.T, dir string) {
	from := t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "twill"), []byte("#!"), 0o755); err != nil {
		t.Fatal(err)
	}
	plugins := install.Plugins{From: from, To: filepath.Join(dir, "bin")}
	if err := installPlugins(plugins, os.Stdout); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // one check
	k := &install.Keeper{Plugins: plugins, Conflist: filepath.Join(dir, "net.d", "10-twill.conflist"), Every: time.Hour,
		Log: slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelError}))}
	if err := k.Run(ctx); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(k.Conflist, nil, 0o644); err != nil {
		t.Error(err)
	}
}
