package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// script is a program of a plugin.
func script(t *testing.T, path, text string) {
	t.Helper()
	put(t, path, "#!"+text)
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestPlugins replaces a program while it runs, writes nothing twice, and leaves no temporary files.
func TestPlugins(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "cni", "bin")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(from, "twill"), string(program))
	target, p := filepath.Join(to, "twill"), Plugins{From: from, To: to}
	if done, err := p.Install(); err != nil || fmt.Sprint(done.Written) != fmt.Sprint([]string{target}) {
		t.Fatalf("did %s, %v; want %s written", done, err, target)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory: %v, %v; want the mode 0755", info, err)
	}
	c := exec.Command(target, "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	put(t, filepath.Join(from, "twill"), "#!another")
	if done, err := p.Install(); err != nil || len(done.Written) != 1 {
		t.Fatalf("over a running program: did %s, %v", done, err)
	}
	if data, err := os.ReadFile(target); string(data) != "#!another" {
		t.Errorf("%s has %d bytes, %v; want the new program", target, len(data), err)
	}
	if done, err := p.Install(); err != nil || len(done.Written) > 0 {
		t.Errorf("did %s, %v a second time", done, err)
	}
	if info, err := os.Stat(filepath.Join(to, installedFile)); err != nil || info.Mode() != 0o644 {
		t.Errorf("the list of what is Twill's: %v, %v; want the mode 0644", info, err)
	}
	if entries, _ := os.ReadDir(to); len(entries) != 2 {
		t.Errorf("%s holds %v, want one program and the list of what is Twill's", to, entries)
	}
	if _, err := (Plugins{From: filepath.Join(from, "none"), To: to}).Install(); err == nil {
		t.Error("a missing source is no error")
	}
}

// TestPluginsOfOthers holds what is replaced: the own plugin always; another one where it is
// missing, damaged, or one that Twill installed from an earlier image; and one that somebody else
// put there only where that is asked for.
func TestPluginsOfOthers(t *testing.T) {
	elf, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, plugin string
		there        func(t *testing.T, path string)
		replace      bool
		want         string // what is done
	}{
		{"missing", "portmap", func(*testing.T, string) {}, false, "written"},
		{"somebody's", "portmap", func(t *testing.T, path string) { script(t, path, "newer") }, false, "left"},
		{"somebody's, for root only", "portmap", func(t *testing.T, path string) { script(t, path, "newer"); _ = os.Chmod(path, 0o700) }, false, "left"},
		{"somebody's binary", "portmap", func(t *testing.T, path string) { put(t, path, string(elf)); _ = os.Chmod(path, 0o755) }, false, "left"},
		{"somebody's, asked for", "portmap", func(t *testing.T, path string) { script(t, path, "newer") }, true, "written"},
		{"a link to somewhere", "portmap", func(t *testing.T, path string) { _ = os.Symlink("/usr/libexec/cni/portmap", path) }, false, "left"},
		{"a link, asked for", "portmap", func(t *testing.T, path string) { _ = os.Symlink("/usr/libexec/cni/portmap", path) }, true, "written"},
		{"own name, a link", "twill", func(t *testing.T, path string) { _ = os.Symlink("/usr/libexec/cni/twill", path) }, false, "written"},
		{"whole, without sections", "portmap", func(t *testing.T, path string) { put(t, path, string(withoutSections(elf))); _ = os.Chmod(path, 0o755) }, false, "left"},
		{"cut short, without sections", "portmap", func(t *testing.T, path string) {
			put(t, path, string(withoutSections(elf)[:len(elf)/2]))
			_ = os.Chmod(path, 0o755)
		}, false, "written"},
		{"a directory", "portmap", func(t *testing.T, path string) { _ = os.Mkdir(path, 0o755) }, false, "refused"},
		{"own name", "twill", func(t *testing.T, path string) { script(t, path, "newer") }, false, "written"},
		{"the same", "portmap", func(t *testing.T, path string) { script(t, path, "image") }, false, ""},
		{"empty", "portmap", func(t *testing.T, path string) { put(t, path, ""); _ = os.Chmod(path, 0o755) }, false, "written"},
		{"cut short", "portmap", func(t *testing.T, path string) { put(t, path, string(elf[:len(elf)/2])); _ = os.Chmod(path, 0o755) }, false, "written"},
		{"not executable", "portmap", func(t *testing.T, path string) { put(t, path, "#!newer") }, false, "written"},
		{"of an earlier image", "portmap", func(t *testing.T, path string) {
			old := t.TempDir()
			script(t, filepath.Join(old, "portmap"), "old")
			if _, err := (Plugins{From: old, To: filepath.Dir(path)}).Install(); err != nil {
				t.Fatal(err)
			}
		}, false, "written"},
		{"of an earlier image that kept no sums", "portmap", func(t *testing.T, path string) {
			old := t.TempDir()
			script(t, filepath.Join(old, "portmap"), "old")
			script(t, path, "old")
			if done, err := (Plugins{From: old, To: filepath.Dir(path)}).Install(); err != nil || len(done.Written)+len(done.Left) > 0 {
				t.Fatal(done, err)
			}
		}, false, "written"},
		{"somebody's after an earlier image's", "portmap", func(t *testing.T, path string) {
			old := t.TempDir()
			script(t, filepath.Join(old, "portmap"), "old")
			if _, err := (Plugins{From: old, To: filepath.Dir(path)}).Install(); err != nil {
				t.Fatal(err)
			}
			script(t, path, "newer")
		}, false, "left"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := Plugins{From: t.TempDir(), To: t.TempDir(), Replace: tt.replace}
			script(t, filepath.Join(p.From, tt.plugin), "image")
			path := filepath.Join(p.To, tt.plugin)
			tt.there(t, path)
			for range 2 {
				done, err := p.Install()
				want := map[string]Done{"written": {Written: []string{path}}, "left": {Left: []string{path}}}[tt.want]
				if (err != nil) != (tt.want == "refused") || fmt.Sprint(done) != fmt.Sprint(want) {
					t.Errorf("did %v, %v; want %v", done, err, want)
				}
				if tt.want == "written" {
					tt.want = "" // the second time there is nothing to do
				}
			}
		})
	}
}

// withoutSections is a program whose header says that it has no sections, as some linkers write them.
func withoutSections(program []byte) []byte {
	p := bytes.Clone(program)
	clear(p[0x28:0x30]) // where they are
	clear(p[0x3c:0x40]) // how many, and which has their names
	return p
}

// TestInstallNowhere: a directory that cannot be made is an error that says so.
func TestInstallNowhere(t *testing.T) {
	from := t.TempDir()
	put(t, filepath.Join(from, "file"), "")
	if _, err := (Plugins{From: from, To: filepath.Join(from, "file", "bin")}).Install(); err == nil || !strings.Contains(err.Error(), "make the directory") {
		t.Errorf("error %v", err)
	}
}

// TestInstallUnreadable: a program of the image that cannot be read is an error, and replaces nothing.
func TestInstallUnreadable(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(from, "twill"), 0o755); err != nil {
		t.Fatal(err)
	}
	script(t, filepath.Join(to, "twill"), "installed")
	done, err := Plugins{From: from, To: to}.Install()
	data, readErr := os.ReadFile(filepath.Join(to, "twill"))
	if err == nil || !strings.Contains(err.Error(), "install the CNI plugin twill") || len(done.Written) > 0 ||
		readErr != nil || string(data) != "#!installed" {
		t.Errorf("did %v, %v; the program is %q, %v", done, err, data, readErr)
	}
}

// TestKeeperTellsOnce: an error is logged when it comes or becomes another, and again only after
// all was well.
func TestKeeperTellsOnce(t *testing.T) {
	var log safeBuffer
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "bin")
	script(t, filepath.Join(from, "portmap"), "image")
	k := &Keeper{Plugins: Plugins{From: from, To: to}, Log: slog.New(slog.NewTextHandler(&log, nil))}
	logged := func(text string, want int) {
		t.Helper()
		k.plugins()
		if got := strings.Count(log.String(), text); got != want {
			t.Errorf("%q is logged %d times, want %d:\n%s", text, got, want, log.String())
		}
	}
	const failed, installed, left = "keep what the container runtime needs", "installed CNI plugins", "are left alone"
	logged(installed, 1)
	logged(installed, 1)
	put(t, filepath.Join(filepath.Dir(to), "file"), "")
	k.To = filepath.Join(filepath.Dir(to), "file", "bin")
	logged(failed, 1)
	logged(failed, 1)
	k.To = to
	logged(failed, 1)
	k.To = filepath.Join(filepath.Dir(to), "file", "bin")
	logged(failed, 2)
	k.To = to
	script(t, filepath.Join(to, "portmap"), "newer")
	logged(left, 1)
	logged(left, 1)
	if err := os.Remove(filepath.Join(to, "portmap")); err != nil {
		t.Fatal(err)
	}
	logged(left, 1)
	script(t, filepath.Join(to, "portmap"), "newer")
	logged(left, 2)
}

// TestDraftsOfTheConflist: drafts of the conflist, which the agent writes, go too.
func TestDraftsOfTheConflist(t *testing.T) {
	dir := t.TempDir()
	path, old := filepath.Join(dir, ".twill-1"), time.Now().Add(-time.Hour)
	put(t, path, "draft")
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	k := &Keeper{Conflist: filepath.Join(dir, "10-twill.conflist"), Log: slog.New(slog.DiscardHandler)}
	k.plugins()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an old draft is there: %v", err)
	}
}

// TestWithoutConflist: without a path of a conflist no directory is looked at, and the working directory least of all.
func TestWithoutConflist(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "+rival.conflist", `{"plugins":[{"type":"bridge"}]}`) // its name sorts before ".", the base of no path
	put(t, ".twill-1", "draft")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(".twill-1", old, old); err != nil {
		t.Fatal(err)
	}
	var log safeBuffer
	k := &Keeper{Log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 2 {
		k.plugins()
		k.rivals()
	}
	if _, err := os.Stat(".twill-1"); err != nil || log.String() != "" {
		t.Errorf("another's draft: %v; the log has %q, want nothing", err, log.String())
	}
}

// TestInstallNotAllowed: where nothing may be written, the error says who may.
func TestInstallNotAllowed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	from, to := t.TempDir(), t.TempDir()
	script(t, filepath.Join(from, "portmap"), "image")
	for _, dir := range []string{filepath.Dir(from), from, to} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its user
		unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534)
		_, err := Plugins{From: from, To: to}.Install()
		done <- err
	}()
	if err := <-done; err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), to+" belongs to user 0") {
		t.Errorf("got %v, want the one error that the directory belongs to root", err)
	}
}

// TestWritable says who may write to a directory, or why that is not known.
func TestWritable(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	if err := errors.Join(os.Mkdir(below, 0o755), os.Chmod(dir, 0o700), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{dir: dir + " belongs to user 0 and has the mode 0700, ", below: "stat " + below + ": permission denied"} {
		if err := writable(path); err != nil {
			t.Errorf("as root: %v", err)
		}
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its user
			unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534)
			done <- writable(path)
		}()
		if err := <-done; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s…", err, want)
		}
	}
}

// TestDrafts holds that drafts of killed processes go, and nothing else does: not a young one, not
// one that is held, not a file of another name or kind.
func TestDrafts(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	script(t, filepath.Join(from, "twill"), "image")
	old := time.Now().Add(-time.Hour)
	held, err := os.CreateTemp(to, ".twill-*")
	if err == nil {
		err = unix.Flock(int(held.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for _, name := range []string{".twill-1", ".twill-2", ".twill-x", "twill-3", ".twill-4.so"} {
		put(t, filepath.Join(to, name), "draft")
	}
	want := []string{".twill-2", ".twill-4.so", ".twill-5", ".twill-6", filepath.Base(held.Name()), ".twill-installed", ".twill-x", "twill", "twill-3"}
	if err := errors.Join(os.Mkdir(filepath.Join(to, ".twill-5"), 0o755), os.Symlink("twill-3", filepath.Join(to, ".twill-6"))); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != ".twill-2" && e.Name() != ".twill-6" {
			if err := os.Chtimes(filepath.Join(to, e.Name()), old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := (Plugins{From: from, To: to}).Install(); err != nil {
		t.Fatal(err)
	}
	entries, err = os.ReadDir(to)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) || err != nil {
		t.Errorf("left are %q, %v; want %q", got, err, want)
	}
}

func TestRival(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"05-other.conflist", `{"plugins":[{"type":"bridge"}]}`, "05-other.conflist"},
		{"05-other.conf", `{"type":"bridge"}`, "05-other.conf"},
		{"05-other.json", `{"type":"bridge"}`, "05-other.json"},
		{"05-other.conflist", `{"plugins":[]}`, ""},
		{"05-other.conflist", `{`, ""},
		{"05-other.conflist", `{"type":"bridge","plugins":3}`, ""},
		{"05-other.conflist.bak", `{"type":"bridge"}`, ""},
		{".05-other.conf", `{"type":"bridge"}`, ""},
		{"99-other.conflist", `{"plugins":[{"type":"bridge"}]}`, ""},
		{"02-istio-cni.conflist", `{"plugins":[{"type":"twill"},{"type":"istio-cni"}]}`, ""},
		{"00-multus.conf", `{"type":"multus","delegates":[{"name":"cbr0","plugins":[{"type":"twill"}]}]}`, ""},
		{"00-multus.conf", `{"type":"multus","delegates":[{"type":"bridge"}]}`, "00-multus.conf"},
		{"00-multus.conf", `{"type":"multus-shim"}`, ""},
	} {
		dir := t.TempDir()
		put(t, filepath.Join(dir, "10-twill.conflist"), `{"plugins":[{"type":"twill"}]}`)
		put(t, filepath.Join(dir, tt.name), tt.text)
		got, err := Rival(filepath.Join(dir, "10-twill.conflist"))
		if err != nil || got != "" && filepath.Base(got) != tt.want || got == "" && tt.want != "" {
			t.Errorf("%s with %s: %q, %v; want %q", tt.name, tt.text, got, err, tt.want)
		}
	}
	dir := t.TempDir()
	if err := os.Symlink("nowhere", filepath.Join(dir, "05-other.conf")); err != nil {
		t.Fatal(err)
	}
	if got, err := Rival(filepath.Join(dir, "10-twill.conflist")); got != "" || err != nil {
		t.Errorf("beside a link to nowhere: %q, %v; want none", got, err)
	}
	if got, err := Rival("/nonexistent/10-twill.conflist"); got != "" || err != nil {
		t.Errorf("without the directory: %q, %v", got, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	put(t, file, "")
	if got, err := Rival(filepath.Join(file, "10-twill.conflist")); got != "" || err == nil {
		t.Errorf("in what is no directory: %q, %v; want an error", got, err)
	}
}

// TestKeeper holds that a deleted plugin comes back, and that a rival is told of once each time it appears.
func TestKeeper(t *testing.T) {
	from, to, conf := t.TempDir(), t.TempDir(), t.TempDir()
	script(t, filepath.Join(from, "twill"), "program")
	rival := filepath.Join(conf, "05-other.conf")
	put(t, rival, `{"type":"bridge"}`)
	events := make(chan string, 100)
	var log safeBuffer
	k := &Keeper{Plugins: Plugins{From: from, To: to}, Conflist: filepath.Join(conf, "10-twill.conflist"), Every: 5 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(&log, nil)), Event: func(_, reason, message string) { events <- reason + " " + message }}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- k.Run(ctx) }()
	testwait.Until(t, "the plugin is installed", func() bool { _, err := os.Stat(filepath.Join(to, "twill")); return err == nil })
	if err := os.Remove(filepath.Join(to, "twill")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the deleted plugin is back", func() bool { _, err := os.Stat(filepath.Join(to, "twill")); return err == nil })
	if got := <-events; !strings.HasPrefix(got, "ForeignCNIConfig "+rival+" comes before 10-twill.conflist") {
		t.Errorf("event %q", got)
	}
	if err := os.Remove(rival); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the log says that the rival is gone", func() bool { return strings.Contains(log.String(), "any more") })
	put(t, rival, `{"type":"bridge"}`)
	<-events
	cancel()
	if err := <-done; err != nil || len(events) > 0 {
		t.Errorf("%v, %d more events", err, len(events))
	}
}

// TestRivalOfAMoment: what is gone at the next check is nobody's business; the agent renames
// flannel's conflist.
func TestRivalOfAMoment(t *testing.T) {
	conf := t.TempDir()
	rival := filepath.Join(conf, "10-flannel.conflist")
	var told []string
	var log safeBuffer
	k := &Keeper{Conflist: filepath.Join(conf, "10-twill.conflist"), Log: slog.New(slog.NewTextHandler(&log, nil)),
		Event: func(_, reason, _ string) { told = append(told, reason) }}
	for range 2 {
		put(t, rival, `{"plugins":[{"type":"flannel"}]}`)
		k.rivals()
		if err := os.Remove(rival); err != nil {
			t.Fatal(err)
		}
		k.rivals()
	}
	if len(told) > 0 {
		t.Errorf("told %v", told)
	}
	put(t, rival, `{"plugins":[{"type":"flannel"}]}`)
	k.rivals()
	k.rivals()
	if len(told) != 1 {
		t.Errorf("told %v of one that stays, want one event", told)
	}
	ours := k.Conflist
	k.Conflist = filepath.Join(rival, "10-twill.conflist")
	if k.rivals(); strings.Contains(log.String(), "any more") {
		t.Errorf("from a directory that cannot be read it is concluded that the rival is gone:\n%s", log.String())
	}
	k.Conflist = ours
	k.rivals() // it is there as before
	if err := os.Remove(rival); err != nil {
		t.Fatal(err)
	}
	if k.rivals(); !strings.Contains(log.String(), "no other CNI config comes before Twill's any more") {
		t.Errorf("that it went is not logged at once:\n%s", log.String())
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

var _ io.Writer = (*safeBuffer)(nil)

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
