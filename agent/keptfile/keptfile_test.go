package keptfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/causes"
	"github.com/twill-net/twill/internal/testwait"
)

// stand is a directory with one file that is kept, and another one.
type stand struct {
	*testing.T
	dir, path string
	keeper    *Keeper
	log       buffer
}

type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *buffer) count(text string) int { return strings.Count(b.String(), text) }

func newStand(t *testing.T) *stand {
	s := &stand{T: t, dir: filepath.Join(t.TempDir(), "run", "flannel")}
	s.path = filepath.Join(s.dir, "subnet.env")
	s.must(os.MkdirAll(s.dir, 0o755))
	s.keeper = New(slog.New(slog.NewTextHandler(&s.log, nil)), &causes.Log{})
	return s
}

// run runs the Keeper for the time of the test.
func (s *stand) run() {
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error)
	go func() { done <- s.keeper.Run(ctx) }()
	s.Cleanup(func() {
		cancel()
		s.must(<-done)
	})
}

func (s *stand) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

const good = "FLANNEL_MTU=1450\n"

func (s *stand) write() {
	s.Helper()
	s.must(s.keeper.Write(s.path, 0o644, text(good)))
}

func text(t string) func() ([]byte, error) { return func() ([]byte, error) { return []byte(t), nil } }

// fine returns an error if the file is not as it was written, with this mode.
func (s *stand) fine(mode fs.FileMode) error {
	info, err := os.Lstat(s.path)
	if err != nil || !info.Mode().IsRegular() {
		return errors.Join(errors.New("no file"), err)
	}
	data, err := os.ReadFile(s.path)
	a := attributesOf(info)
	if err != nil || string(data) != good || info.Mode() != mode || int(a.uid) != os.Geteuid() {
		return fmt.Errorf("%q with the mode %s of user %d: %v", data, info.Mode(), a.uid, err)
	}
	return nil
}

// eventually waits until check returns nil. A failure tells the log.
func (s *stand) eventually(what string, check func() error) {
	s.Helper()
	testwait.Nil(s, what, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%w\n%s", err, &s.log)
		}
		return nil
	})
}

// alterations are shell commands in the file's directory. EXCHANGE; makes other the file, or old the directory, in one
// step: with two the file is back before the second.
var alterations = map[string]string{
	"deleted":               "rm subnet.env",
	"truncated":             ": >subnet.env",
	"appended to":           "echo x >>subnet.env",
	"overwritten in place":  "printf X | dd of=subnet.env conv=notrunc status=none",
	"replaced":              "echo x >other; mv other subnet.env",
	"replaced by its equal": "cp subnet.env other; chmod 666 other; mv other subnet.env",
	"moved away":            "mv subnet.env other",
	"mode 000":              "chmod 000 subnet.env",
	"mode 666":              "chmod 666 subnet.env",
	"setuid":                "chmod 4644 subnet.env",
	"owner":                 "chown 1 subnet.env",
	"group":                 "chgrp 65534 subnet.env",
	"a link":                "echo x >another; ln -sf another other; EXCHANGE;",
	"a dangling link":       "ln -sf nowhere other; EXCHANGE;",
	"an empty directory":    "mkdir -p other; EXCHANGE;",
	"a pipe":                "mkfifo other; EXCHANGE;",
	"directory deleted":     "mv ../flannel ../old; rm -r ../old",
	"directory moved away":  "mv ../flannel ../old",
	"directory replaced":    "mkdir ../old; EXCHANGE;",
	"both levels deleted":   "mv ../../run ../../run2; rm -r ../../run2",
	"directory is a file":   "echo x >../old; EXCHANGE; sleep 0.05; rm flannel",
}

func (s *stand) alter(command string) {
	s.Helper()
	first, second, exchange := strings.Cut(command, "EXCHANGE;")
	s.shell(first)
	if !exchange {
		return
	}
	from, to := filepath.Join(s.dir, "other"), s.path
	if strings.Contains(first, "../old") {
		from, to = filepath.Join(s.dir, "../old"), s.dir
	}
	s.must(unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE))
	if second != "" {
		s.shell(second)
	}
}

func (s *stand) shell(command string) {
	s.Helper()
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = s.dir
	if info, err := os.Stat(s.dir); err != nil || !info.IsDir() {
		cmd.Dir = filepath.Dir(s.dir)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("%v\n%s", err, out)
	}
}

// TestPutBack: whatever is done to the file or its directory, the file is put back without a Check, also a second time.
func TestPutBack(t *testing.T) {
	for name, command := range alterations {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(command, "ch") && os.Geteuid() != 0 {
				t.Skip("needs root, to give files to others")
			}
			s := newStand(t)
			s.run()
			s.write()
			for range 3 {
				s.alter(command)
				s.eventually("the file is back", func() error { return s.fine(0o644) })
				s.eventually("the log tells", func() error {
					if s.log.count(`msg="put a file back"`) == 0 {
						return errors.New("it does not")
					}
					return nil
				})
				for _, rest := range []string{"../old", "other"} {
					s.must(os.RemoveAll(filepath.Join(s.dir, rest)))
				}
			}
			if n := s.log.count(`msg="put a file back"`); n != 1 {
				t.Errorf("%d lines tell of it, want one", n)
			}
			if list, err := os.ReadDir(s.dir); err != nil || len(list) > 2 {
				t.Errorf("left behind: %v, %v", list, err)
			}
		})
	}
}

// TestStricter: a mode that allows less stays, also when the file is put back; so does a directory's.
func TestStricter(t *testing.T) {
	s := newStand(t)
	s.run()
	s.write()
	s.must(errors.Join(os.Chmod(s.path, 0o640), os.Chmod(s.dir, 0o700)))
	if !s.keeper.Check() {
		t.Error("it is not fine")
	}
	for _, damage := range []func() error{
		func() error { return os.WriteFile(s.path, nil, 0) },
		func() error { return os.Chmod(s.path, 0o646) },
		func() error { return errors.Join(os.Rename(s.dir, s.dir+".old"), os.RemoveAll(s.dir+".old")) },
	} {
		s.must(s.fine(0o640))
		s.must(damage())
		s.eventually("the file is back", func() error { return s.fine(0o640) })
		if info, err := os.Stat(s.dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the directory: %v, %v", info, err)
		}
	}
}

// TestChange: what is written later is kept from then on, and an unchanged file is not touched.
func TestChange(t *testing.T) {
	s := newStand(t)
	s.must(s.keeper.Write(s.path, 0o644, text("FLANNEL_MTU=1400\n")))
	s.write()
	before, err := os.Stat(s.path)
	s.must(err)
	s.write()
	s.keeper.Check()
	if after, err := os.Stat(s.path); err != nil || !os.SameFile(before, after) {
		t.Errorf("an unchanged file was replaced: %v", err)
	}
	s.must(os.Remove(s.path))
	if !s.keeper.Check() || s.fine(0o644) != nil {
		t.Errorf("without Run, Check does not put it back: %v", s.fine(0o644))
	}
}

// TestCannot: what stands in the way is one line in the log, and the file is back when it is gone. A directory that is
// not empty is not deleted, and one that was never there is not made.
func TestCannot(t *testing.T) {
	s := newStand(t)
	if err := s.keeper.Write(filepath.Join(s.dir, "none", "file"), 0o644, text("")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no directory: %v", err)
	}
	if err := s.keeper.Write("/proc/file", 0o644, text("")); err == nil {
		t.Error("a file in /proc was written")
	}
	s = newStand(t)
	s.run()
	var tries atomic.Int32
	s.must(s.keeper.Write(s.path, 0o644, func() ([]byte, error) { tries.Add(1); return []byte(good), nil }))
	s.alter("mkdir -p other/full; EXCHANGE; rm other")
	failed := func() error {
		if s.log.count("a directory is in its place") == 0 {
			return errors.New("no line")
		}
		return nil
	}
	s.eventually("it is logged", failed)
	s.eventually("it is tried again and again", func() error {
		if n := tries.Load(); n < 6 {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
	if err := s.keeper.Write(s.path, 0o644, text(good)); err == nil {
		t.Error("Write returns no error")
	}
	if n := s.log.count("a directory is in its place"); n != 1 {
		t.Errorf("it is logged %d times", n)
	}
	if _, err := os.Stat(filepath.Join(s.path, "full")); err != nil {
		t.Errorf("somebody's directory is gone: %v", err)
	}
	s.must(os.Rename(s.path, filepath.Join(t.TempDir(), "away"))) // at once: an empty directory is no obstacle
	s.eventually("the file is back", func() error { return s.fine(0o644) })
}

// TestWriteFails: a Write that fails wakes Run, which may have left the file alone because Write held it.
func TestWriteFails(t *testing.T) {
	s := newStand(t)
	s.must(os.MkdirAll(filepath.Join(s.path, "full"), 0o755))
	for range 2 { // as a new file, and as one that is known
		if err := s.keeper.Write(s.path, 0o644, text(good)); err == nil {
			t.Fatal("a directory that is not empty was replaced")
		}
		select {
		case <-s.keeper.events:
		default:
			t.Error("nothing tries again")
		}
	}
}

// TestOften: a file that is altered all the time is written three times a second in the end, and logged rarely.
func TestOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		s.write()
		writes := 0
		for range 3000 {
			s.must(os.Truncate(s.path, 0))
			if s.keeper.Check(); s.fine(0o644) == nil {
				writes++
			}
			time.Sleep(time.Millisecond)
		}
		if want := repairs + int(3*time.Second/repairPause); writes < want-1 || writes > want {
			t.Errorf("it was put back %d times, want %d", writes, want)
		}
		if n := s.log.count(`msg="put a file back"`); n != 1 {
			t.Errorf("%d lines tell that it was put back", n)
		}
		if n := s.log.count("another program keeps changing a file"); n != 1 {
			t.Errorf("%d lines tell that another program changes it", n)
		}
		if got := s.keeper.Contended(); !slices.Equal(got, []string{s.path}) {
			t.Errorf("contended are %q, want the file", got)
		}
		time.Sleep(duelTime)
		if got := s.keeper.Contended(); len(got) > 0 {
			t.Errorf("a minute later %q are contended", got)
		}
	})
}

// TestOftenIsPutBack: what was put back too often is put back a little later, although nothing happens to it any more.
func TestOftenIsPutBack(t *testing.T) {
	s := newStand(t)
	s.run()
	s.write()
	for range repairs + 3 {
		s.must(os.Truncate(s.path, 0))
		s.eventually("the file is back", func() error { return s.fine(0o644) })
	}
	if n := s.log.count(`msg="put a file back"`); n != 1 {
		t.Errorf("%d lines tell that it was put back", n)
	}
}

// TestLost: a directory that was deleted below a mount is lost. Nothing else is: one that is away or was made again.
func TestLost(t *testing.T) {
	if os.Getenv("TWILL_TEST_LOST") == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to mount")
		}
		self := exec.Command("/proc/self/exe", "-test.run=^TestLost$", "-test.v")
		self.Env = append(os.Environ(), "TWILL_TEST_LOST=1")
		self.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := self.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	s := newStand(t)
	s.write()
	s.must(os.RemoveAll(s.dir))
	s.must(s.keeper.Lost())
	s.must(os.Mkdir(s.dir, 0o755))
	s.must(s.keeper.Lost())
	host := t.TempDir()
	s.must(unix.Mount(host, s.dir, "", unix.MS_BIND, ""))
	defer func() { s.must(unix.Unmount(s.dir, unix.MNT_DETACH)) }()
	s.run()
	s.write()
	s.must(s.fine(0o644))
	s.must(s.keeper.Lost())
	s.must(os.Rename(host, host+".old"))
	s.eventually("it is deleted, while the file is put back into it", func() error { return os.RemoveAll(host + ".old") })
	s.eventually("the directory is lost", func() error {
		if s.keeper.Lost() == nil {
			return errors.New("it is not")
		}
		return nil
	})
	if err := s.keeper.Lost(); !strings.Contains(err.Error(), s.dir+" was deleted where it is mounted from") {
		t.Error(err)
	}
}

// TestNoInotify: where nothing can be watched, one line tells, and Check puts back.
func TestNoInotify(t *testing.T) {
	if os.Getenv("TWILL_TEST_NO_INOTIFY") == "" {
		self := exec.Command("/proc/self/exe", "-test.run=^TestNoInotify$", "-test.v")
		self.Env = append(os.Environ(), "TWILL_TEST_NO_INOTIFY=1")
		one := []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		self.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: one,
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
		out, err := self.CombinedOutput()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
			t.Skipf("no user namespace: %v", err)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	s := newStand(t)
	s.must(os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0))
	s.run()
	s.write()
	s.eventually("it is logged", func() error {
		if s.log.count("watch files, which are checked once a minute only") == 0 {
			return errors.New("no line")
		}
		return nil
	})
	for range 3 {
		s.must(os.Remove(s.path))
		s.eventually("Check puts it back", func() error { s.keeper.Check(); return s.fine(0o644) })
	}
	if n := s.log.count("watch files"); n != 1 {
		t.Errorf("%d lines tell of it", n)
	}
}
