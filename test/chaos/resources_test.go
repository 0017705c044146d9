package chaos

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// resource is something that the agent of a node shares with others, and how to take it away.
type resource struct {
	name string
	take func(*machine) (giveBack func())
	// adds says what an ADD says meanwhile; "" if it works, or hangs as the disk does.
	adds string
}

// machine is a stand whose first node has a disk of its own, a log that is a pipe, and iptables in a folder of its own.
type machine struct {
	*stand
	pipe     *os.File // the log's other end; nil: nobody has it
	log      []byte   // what was read of it
	programs string   // what hangs in it, while there is a file hang
	process  host.Process
}

// resources are taken in an order that the seed draws.
var resources = []resource{
	{"disk frozen", func(m *machine) func() {
		m.run("fsfreeze", "-f", m.node().Dir())
		return func() { m.run("fsfreeze", "-u", m.node().Dir()) }
	}, ""},
	{"disk full", func(m *machine) func() {
		path := filepath.Join(m.node().Dir(), "ballast")
		_ = exec.Command("dd", "if=/dev/zero", "of="+path, "bs=1k").Run() // it ends with an error: no space
		return func() { must(m.T, os.Remove(path)) }
	}, "no space left on device"},
	{"disk read-only", func(m *machine) func() {
		testwait.Nil(m, "no file is just being written, and the disk becomes read-only", func() error {
			return exec.Command("mount", "-o", "remount,ro", m.node().Dir()).Run()
		})
		return func() { m.run("mount", "-o", "remount,rw", m.node().Dir()) }
	}, "read-only file system"},
	{"log pipe full", func(m *machine) func() { m.fill(); return m.drain }, ""},
	{"reader of the log gone", func(m *machine) func() {
		must(m.T, m.pipe.Close())
		return m.openPipe
	}, ""},
	{"lock of the reservations held", func(m *machine) func() {
		path := filepath.Join(m.node().Dir(), "networks", "cbr0", "lock")
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
		must(m.T, err)
		must(m.T, unix.Flock(int(f.Fd()), unix.LOCK_EX))
		return func() { must(m.T, f.Close()) }
	}, ""},
	{"iptables hangs", func(m *machine) func() {
		hang := filepath.Join(m.programs, "hang")
		must(m.T, os.WriteFile(hang, nil, 0o600))
		_, err := m.node().Exec(m.Context(), "iptables-nft", "-t", "nat", "-F", "FLANNEL-POSTRTG")
		must(m.T, err)
		return func() {
			must(m.T, os.Remove(hang))
			testwait.Until(m, "the rules are back", func() bool {
				out, err := m.node().Exec(m.Context(), "iptables-nft", "-t", "nat", "-S", "FLANNEL-POSTRTG")
				return err == nil && strings.Contains(out, "-A FLANNEL-POSTRTG")
			})
		}
	}, ""},
	{"processes", func(m *machine) func() {
		return m.limit("pids", "pids.max", "max", func(dir string) string {
			now, err := os.ReadFile(filepath.Join(dir, "pids.current"))
			must(m.T, err)
			return strings.TrimSpace(string(now))
		})
	}, ""},
	{"memory", func(m *machine) func() {
		// What it has already is not counted.
		return m.limit("memory", "memory.limit_in_bytes", "-1", func(string) string { return strconv.Itoa(moreMemory) })
	}, ""},
	{"descriptors", func(m *machine) func() {
		var before unix.Rlimit
		must(m.T, unix.Prlimit(m.process.PID, unix.RLIMIT_NOFILE, nil, &before))
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.process.PID))
		must(m.T, err)
		must(m.T, unix.Prlimit(m.process.PID, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open) + 6), Max: before.Max}, nil))
		return func() { must(m.T, unix.Prlimit(m.process.PID, unix.RLIMIT_NOFILE, &before, nil)) }
	}, ""},
}

// moreMemory is how many bytes the agent may take when there is no memory.
const moreMemory = 8 << 20

// limit puts the agent into a control group that allows it no more than allowed, which is told the group's directory.
func (m *machine) limit(controller, file, none string, allowed func(dir string) string) (giveBack func()) {
	dir := filepath.Join("/sys/fs/cgroup", controller, "twill-chaos-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		m.Logf("%s is not taken away: %v", controller, err) // a machine without version 1 of control groups
		return func() {}
	}
	must(m.T, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(m.process.PID)), 0o600))
	must(m.T, os.WriteFile(filepath.Join(dir, file), []byte(allowed(dir)), 0o600))
	return func() {
		must(m.T, os.WriteFile(filepath.Join(dir, file), []byte(none), 0o600))
		must(m.T, os.WriteFile(filepath.Join("/sys/fs/cgroup", controller, "cgroup.procs"), []byte(strconv.Itoa(m.process.PID)), 0o600))
		must(m.T, os.Remove(dir))
	}
}

func newMachine(t *testing.T) *machine {
	m := &machine{stand: &stand{T: t, lab: labtest.Up(t, lab.Spec{Name: "mishapless", Store: lab.File, Nodes: 3, Pods: 1,
		NetConf: json.RawMessage(`{"Network": "10.244.0.0/16", "EnableNFTables": false, "Backend": {"Type": "vxlan"}}`)})}, programs: t.TempDir()}
	sleep, err := exec.LookPath("sleep")
	must(t, err)
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, name := range []string{family, family + "-restore"} {
			path, err := exec.LookPath(strings.Replace(name, "tables", "tables-nft", 1))
			must(t, err)
			script := fmt.Sprintf("#!/bin/sh\n[ -e %s/hang ] && exec %s 1000\nexec %s \"$@\"\n", m.programs, sleep, path)
			must(t, os.WriteFile(filepath.Join(m.programs, name), []byte(script), 0o755))
		}
	}
	n := m.node()
	must(t, n.StopAgent(t.Context()))
	image, old := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "old")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 32<<20))
	m.run("mkfs.ext4", "-q", image)
	m.run("cp", "-a", n.Dir(), old)
	m.run("mount", "-o", "loop", image, n.Dir())
	t.Cleanup(func() { m.run("umount", "-l", n.Dir()) })
	m.run("cp", "-a", old+"/.", n.Dir())
	must(t, os.Remove(n.Log()))
	must(t, unix.Mkfifo(n.Log(), 0o600))
	m.openPipe()
	m.start()
	t.Cleanup(func() {
		must(t, m.process.Kill())
		if m.keepRead(); t.Failed() {
			t.Logf("the agent's log:\n%s", m.log)
		}
	})
	m.watch()
	return m
}

// start starts the agent with the programs that may hang.
func (m *machine) start() {
	n := m.node()
	p, err := n.Start(host.Command{Path: agentPath(n), Args: n.AgentFlags(),
		Env: []string{"PATH=" + m.programs, "NODE_NAME=" + n.Name}, Log: n.Log()})
	must(m.T, err)
	m.process = p
	waitReady(m.T, n)
}

func (m *machine) run(name string, args ...string) {
	m.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		m.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

func (m *machine) openPipe() {
	f, err := os.OpenFile(m.node().Log(), os.O_RDWR|unix.O_NONBLOCK, 0)
	must(m.T, err)
	m.pipe = f
}

// fill fills the pipe, which nobody reads then.
func (m *machine) fill() {
	raw, err := m.pipe.SyscallConn()
	must(m.T, err)
	must(m.T, raw.Write(func(fd uintptr) bool {
		for {
			if _, err := unix.Write(int(fd), make([]byte, 512)); err != nil {
				return true
			}
		}
	}))
}

// drain reads all that is in the pipe.
func (m *machine) drain() {
	raw, err := m.pipe.SyscallConn()
	must(m.T, err)
	buffer := make([]byte, 64<<10)
	must(m.T, raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Read(int(fd), buffer)
			if n <= 0 || err != nil {
				return true
			}
			m.log = append(m.log, buffer[:n]...)
		}
	}))
}

// TestResources takes away what the agent shares with others, one after the other, and deletes routes meanwhile: they are
// put back each time, the pods that are there lose nothing, ADD says what it lacks, and all of it heals by itself.
func TestResources(t *testing.T) {
	seed := uint64(1)
	if text := os.Getenv("TWILL_CHAOS_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		must(t, err)
		seed = given
	}
	t.Logf("TWILL_CHAOS_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	m := newMachine(t)
	for _, i := range random.Perm(len(resources)) {
		r := resources[i]
		t.Log("without: " + r.name)
		giveBack := r.take(m)
		given := false
		back := func() {
			if !given {
				given = true
				giveBack()
			}
		}
		t.Cleanup(back) // a frozen disk would stop the test's own cleaning up
		for range 1 + random.IntN(3) {
			m.harm()
			m.routeIsBack()
		}
		if r.adds != "" {
			m.mustRefuse(r.adds)
		}
		back()
		m.healed(r.name)
	}
	m.mustHaveLostNothing()
	if !m.process.Running() {
		t.Error("the agent has ended")
	}
}

func (m *machine) routeIsBack() {
	m.Helper()
	subnet := m.third().Subnets()[0].String()
	testwait.Until(m, "the route is back", func() bool {
		out, err := m.node().Exec(m.Context(), "ip", "route", "show", subnet)
		return err == nil && strings.Contains(out, subnet)
	})
}

// mustRefuse: an ADD fails, and says why.
func (m *machine) mustRefuse(words string) {
	m.Helper()
	pod, err := m.node().AddPod(m.Context(), "refused")
	if err == nil || !strings.Contains(err.Error(), words) {
		m.Errorf("an ADD: %v, want %q", err, words)
	}
	if err == nil {
		must(m.T, m.node().DelPod(m.Context(), pod))
	}
}

// healed: the node is ready, its files are there, and a pod can come and go.
func (m *machine) healed(without string) {
	m.Helper()
	testwait.Nil(m, "after "+without+": the node is ready and has its files", func() error {
		m.keepRead()
		_, err := m.node().Env()
		return errors.Join(err, m.node().Probe(m.Context(), "/readyz"), m.node().Probe(m.Context(), "/healthz"))
	})
	pod, err := m.node().AddPod(m.Context(), "after")
	must(m.T, err)
	mustReach(m.T, pod, m.third().Pods()[0])
	must(m.T, m.node().DelPod(m.Context(), pod))
}

// keepRead reads the log, as its reader does when nothing is taken away.
func (m *machine) keepRead() {
	if _, err := m.pipe.Stat(); !errors.Is(err, os.ErrClosed) {
		m.drain()
	}
}

// intruders are what somebody puts at a path that the agent reads.
var intruders = []struct {
	name string
	put  func(path string) error
}{
	{"a pipe", func(path string) error { return unix.Mkfifo(path, 0o600) }},
	{"a device", func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) }},
	{"a link to a device", func(path string) error { return os.Symlink("/dev/zero", path) }},
	{"a directory", func(path string) error { return os.Mkdir(path, 0o700) }},
	{"a terabyte", func(path string) error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Truncate(1<<40), f.Close())
	}},
}

// TestIntruders puts what is no small file at each path that the agent reads, while it runs and before it starts.
func TestIntruders(t *testing.T) {
	s := newStand(t, "mishapintruder")
	n := s.node()
	for _, path := range []string{n.SubnetFile(), n.CheckpointFile()} {
		for _, in := range intruders {
			for _, running := range []bool{true, false} {
				if !running {
					must(t, n.StopAgent(t.Context()))
				}
				testwait.Nil(t, "there is "+in.name+" at "+path+", before the agent has written it again", func() error {
					return cmp.Or(os.Rename(path, path+".old"), in.put(path))
				})
				if !running {
					must(t, n.StartAgent(t.Context()))
				}
				s.harm()
				s.mustHeal()
				waitReady(t, n)
				testwait.Until(t, in.name+" at "+path+" is replaced", func() bool {
					info, err := os.Lstat(path)
					return err == nil && info.Mode().IsRegular() && info.Size() < 1<<20
				})
			}
		}
	}
	s.mustHaveLostNothing()
}
