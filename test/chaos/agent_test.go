package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// stand is a lab and the traffic that must not stop.
type stand struct {
	*testing.T
	lab    *lab.Lab
	stream *host.Stream
	begin  host.Mark
}

func newStand(t *testing.T, name string) *stand {
	s := &stand{T: t, lab: labtest.Up(t, lab.Spec{Name: name, Store: lab.File, Nodes: 3, Pods: 1})}
	s.watch()
	return s
}

// node is the target.
func (s *stand) node() *lab.Node { return s.lab.Nodes()[0] }

// watch begins to count what is lost between the target's pod and a peer's.
func (s *stand) watch() {
	stream, err := s.node().Pods()[0].Stream(s.lab.Nodes()[1].Pods()[0].Addrs[0], 5*time.Millisecond)
	must(s.T, err)
	s.Cleanup(stream.Close)
	goesOn(s.T, stream, 10)
	s.stream, s.begin = stream, stream.Mark()
}

func (s *stand) mustHaveLostNothing() {
	s.Helper()
	goesOn(s.T, s.stream, 10)
	loss, err := s.stream.Between(s.Context(), s.begin, s.stream.Mark())
	must(s.T, err)
	if loss.Lost > 0 {
		s.Errorf("%s between pods that have nothing to do with it", loss)
	}
}

// harm deletes the way to the third node.
func (s *stand) harm() {
	_, err := s.node().Exec(s.Context(), "ip", "route", "del", s.third().Subnets()[0].String())
	must(s.T, err)
}

func (s *stand) third() *lab.Node { return s.lab.Nodes()[2] }

func (s *stand) mustHeal() {
	s.Helper()
	mustReach(s.T, s.node().Pods()[0], s.third().Pods()[0])
}

func (s *stand) mustLog(words string) {
	s.Helper()
	testwait.Until(s, fmt.Sprintf("the agent's log says %q", words), func() bool {
		log, err := os.ReadFile(s.node().Log())
		must(s.T, err)
		return strings.Contains(string(log), words)
	})
}

// TestSecondAgent: the second agent on a node says that there is one and ends; the first goes on.
func TestSecondAgent(t *testing.T) {
	s := newStand(t, "mishapsecond")
	out, err := s.node().Exec(t.Context(), append([]string{agentPath(s.node())}, s.node().AgentFlags()...)...)
	if err == nil || !strings.Contains(out+err.Error(), "another twilld on this node") {
		t.Errorf("a second agent: %v\n%s", err, out)
	}
	s.harm()
	s.mustHeal()
	s.mustHaveLostNothing()
}

// TestKilledAnywhere kills the agent at random moments of its start and of its repairs, forty times.
func TestKilledAnywhere(t *testing.T) {
	s := newStand(t, "mishapkilled")
	must(t, s.node().KillAgent())
	random := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		for _, command := range []string{"ip link set flannel.1 mtu 1400", "ip neigh flush dev flannel.1 nud permanent", "bridge fdb add 0e:00:00:00:00:77 dev flannel.1 dst 192.168.33.177"} {
			_, _ = s.node().Exec(t.Context(), strings.Fields(command)...) // one of an earlier round may be there
		}
		p, err := s.node().Start(host.Command{Path: agentPath(s.node()), Args: s.node().AgentFlags(), Env: []string{"PATH=" + os.Getenv("PATH")}, Log: s.node().Log()})
		must(t, err)
		testwait.Pause(t, time.Duration(random.Int64N(int64(80*time.Millisecond))), "the agent is killed anywhere")
		must(t, p.Kill())
	}
	must(t, s.node().StartAgent(t.Context()))
	s.mustHeal()
	mustBeClean(t, s.node())
}

// mustBeClean: the kernel is as the leases ask.
func mustBeClean(t *testing.T, n *lab.Node) {
	t.Helper()
	testwait.Nil(t, n.Name+" is as it should be", func() error {
		out, err := n.Exec(t.Context(), n.DryRun()...)
		if err == nil && !strings.Contains(out, "# nothing to change") {
			err = errors.New(out)
		}
		return err
	})
}

// TestHintsOverflow has the kernel report more changes than the agent's subscription holds, and harms something in the
// middle of it.
func TestHintsOverflow(t *testing.T) {
	s := newStand(t, "mishaphints")
	var batch strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&batch, "route add 198.18.%d.%d/32 dev cni0\n", i>>8&255, i&255)
	}
	path := filepath.Join(t.TempDir(), "batch")
	must(t, os.WriteFile(path, []byte(batch.String()), 0o600))
	flood := make(chan error, 1)
	go func() {
		_, err := s.node().Exec(t.Context(), "ip", "-force", "-batch", path)
		flood <- err
	}()
	testwait.Pause(t, 50*time.Millisecond, "the harm comes in the middle of the flood")
	s.harm()
	<-flood // the agent deletes such routes meanwhile, if they lead through its own devices
	s.mustHeal()
	s.mustHaveLostNothing()
}

// TestReadOnlyDisk: subnet.env and the checkpoint cannot be written. The data path goes on and heals.
func TestReadOnlyDisk(t *testing.T) {
	s := newStand(t, "mishapdisk")
	dir := s.node().Dir()
	must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	mounted := true
	unmount := func() {
		if mounted {
			must(t, unix.Unmount(dir, unix.MNT_DETACH))
		}
		mounted = false
	}
	t.Cleanup(unmount)
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	joined, err := s.lab.Join(t.Context()) // which changes the checkpoint
	must(t, err)
	mustReach(t, s.node().Pods()[0], joined.Pods()[0])
	s.harm()
	s.mustHeal()
	s.mustLog("read-only file system")
	unmount()
	s.mustHaveLostNothing()
	if !s.node().AgentRunning() {
		t.Error("the agent has ended")
	}
}

// TestNoFileDescriptors: the agent cannot open anything; when it can again, it mends what was broken meanwhile.
func TestNoFileDescriptors(t *testing.T) {
	s := newStand(t, "mishapfds")
	pid := s.node().Agent().PID
	var before unix.Rlimit
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before))
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}, nil))
	s.harm()
	joined, err := s.lab.Join(t.Context())
	must(t, err)
	testwait.Pause(t, time.Second, "the agent tries in vain to open something")
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil))
	s.mustHeal()
	mustReach(t, s.node().Pods()[0], joined.Pods()[0])
	s.mustHaveLostNothing()
	if s.node().Agent().PID != pid || !s.node().AgentRunning() {
		t.Error("the agent has ended")
	}
}

// TestReadOnlySysctls runs an agent whose /proc/sys is read-only, as in an unprivileged container. What is right
// already needs no writing.
func TestReadOnlySysctls(t *testing.T) {
	s := newStand(t, "mishapsys")
	wrapper := filepath.Join(t.TempDir(), "twilld-ro")
	must(t, os.WriteFile(wrapper, []byte("#!/bin/sh\nexec unshare -m sh -c 'mount -o remount,ro,bind /proc/sys 2>/dev/null || { mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys; } && exec \"$@\"' sh "+agentPath(s.node())+" \"$@\"\n"), 0o755))
	p := runProgram(t, s.node(), wrapper, s.node().AgentFlags()...)
	s.harm()
	s.mustHeal()
	s.mustHaveLostNothing()
	_, err := s.node().Exec(t.Context(), "sysctl", "-qw", "net.ipv4.ip_forward=0")
	must(t, err)
	s.mustLog("read-only file system")
	_, err = s.node().Exec(t.Context(), "sysctl", "-qw", "net.ipv4.ip_forward=1")
	must(t, err)
	s.mustHeal()
	if !p.Running() {
		t.Error("the agent has ended")
	}
}
