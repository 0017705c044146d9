package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/fake"
	"github.com/twill-net/twill/subnet"
)

// TestKeepFiles: what somebody does to the files of an agent, or to their directories, is undone by KeepFiles alone, which
// waits for no reconcile.
func TestKeepFiles(t *testing.T) {
	n := newNode(t)
	n.addPeer("node2", "10.244.2.0/24", "192.168.33.102", "0e:00:00:00:00:02")
	run, state, cni := filepath.Join(n.dir, "run"), filepath.Join(n.dir, "state"), filepath.Join(n.dir, "cni")
	env, saved, conflist := filepath.Join(run, "subnet.env"), filepath.Join(state, "checkpoint.json"), filepath.Join(cni, "10-twill.conflist")
	source := filepath.Join(n.dir, "source")
	n.must(errors.Join(os.Mkdir(cni, 0o755), os.WriteFile(source, []byte(`{"plugins":[{"type":"twill"}]}`), 0o600)))
	n.tune = func(c *Config) {
		c.Settings.SubnetFile, c.Settings.Checkpoint = env, saved
		c.Settings.Conflist = Conflist{Source: source, Target: conflist}
	}
	stop := n.start()
	done := make(chan error)
	go func() { done <- n.agent.KeepFiles(n.Context()) }()
	t.Cleanup(func() { n.must(<-done) })
	fine := func() bool {
		_, err := subnet.ReadEnv(env)
		c, cErr := readCheckpoint(saved)
		data, fErr := os.ReadFile(conflist)
		return errors.Join(err, cErr, fErr) == nil && len(c.Peers) == 1 && string(data) == `{"plugins":[{"type":"twill"}]}`
	}
	testwait.Until(t, "all files", func() bool { return n.ready() && fine() })
	for path, mode := range map[string]os.FileMode{run: 0o755, state: 0o755, env: 0o644, saved: 0o600, conflist: 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want the mode %s", path, info, err, mode)
		}
	}
	n.must(os.Remove(source)) // the last good one is kept
	stop()                    // else a reconcile, once a minute, would put files back too
	for _, path := range []string{env, saved, conflist} {
		for name, alter := range map[string]func() error{
			"deleted":   func() error { return os.Remove(path) },
			"truncated": func() error { return os.Truncate(path, 0) },
			"directory": func() error { return os.Rename(filepath.Dir(path), filepath.Join(n.dir, "old"+filepath.Base(path))) },
		} {
			n.must(alter())
			testwait.Until(t, path+" "+name+" is back", fine)
			testwait.Until(t, "it is logged", func() bool { return n.logs(`msg="put a file back" path=`+path) == 1 })
		}
		n.must(os.RemoveAll(filepath.Join(n.dir, "old"+filepath.Base(path))))
	}
}

// TestWriteEnv: an unchanged file is not touched, and one that cannot be written is an error.
func TestWriteEnv(t *testing.T) {
	m := newModel(t, nil)
	path := filepath.Join(t.TempDir(), "run", "subnet.env")
	m.agent.Settings.SubnetFile = path
	lease := subnet.Lease{Stacks: []subnet.Stack{{Subnet: prefixes("10.244.1.0/24")[0]}}}
	content := string(m.agent.envOf(m.agent.loop.node, lease).Format())
	must(t, m.agent.writeEnv(content))
	before, err := os.Stat(path)
	must(t, err)
	must(t, m.agent.writeEnv(content))
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("an unchanged file was replaced: %v", err)
	}
	for _, path := range []string{filepath.Join(path, "file"), "/proc/none/subnet.env", "/proc/subnet.env"} {
		m.agent.Settings.SubnetFile = path
		if err := m.agent.writeEnv(content); err == nil {
			t.Errorf("%s was written", path)
		}
	}
}

// TestOneLineACause: a repair that fails each time, with another text each time, is one line in the log, some at growing
// intervals, and one when it is over; so is what somebody alters again and again.
func TestOneLineACause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tune = func(c *Config) {
			c.Log = slog.New(slog.NewTextHandler(&n.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
		stop := n.start()
		n.eventually("ready", n.ready)
		before := strings.Count(n.log.String(), "\n")
		var tried atomic.Int32
		n.kernel.SetFaults(fake.Faults{Change: func(c netstate.Change) error {
			if c.Key().Name != "flannel.1" {
				return nil
			}
			return fmt.Errorf("try %d: another device has its VNI", tried.Add(1))
		}})
		n.must(n.kernel.Run("ip link del flannel.1"))
		time.Sleep(time.Minute)
		tries := tried.Load()
		if lines := n.logs(`msg="bring the kernel to the wanted state"`); lines != 3 || tries < 10 {
			t.Errorf("%d tries are %d lines, want 3", tries, lines)
		}
		if lines := strings.Count(n.log.String(), "\n") - before; lines > 20 {
			t.Errorf("%d tries are %d lines with all that is logged at debug level:\n%s", tries, lines, n.log.String())
		}
		n.kernel.SetFaults(fake.Faults{})
		n.eventually("repaired", func() bool { return n.has("link flannel.1") })
		time.Sleep(2 * time.Minute)
		if lines := n.logs(`msg="bring the kernel to the wanted state: over"`); lines != 1 {
			t.Errorf("%d lines tell that it is over", lines)
		}
		for range 50 {
			n.must(n.kernel.Run("ip link set flannel.1 down"))
			time.Sleep(time.Second)
		}
		if lines := n.logs(`level=INFO msg="applied a plan" node=node1 changes=1 link=1`); lines != 3 {
			t.Errorf("50 repairs are %d lines, want 3:\n%s", lines, n.log.String())
		}
		time.Sleep(2 * time.Minute)
		if lines := n.logs(`msg="applied a plan: over"`); lines != 1 {
			t.Errorf("%d lines tell that it is over", lines)
		}
		stop()
	})
}
