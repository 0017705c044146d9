package chaos

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
)

// TestManyCallers has a pod open ten thousand connections to the agent's health port, and the node itself another thousand,
// and ask on each once. The agent, which may have 128 descriptors, keeps few of them, needs no more memory for that, answers
// the node's own probes, and repairs.
func TestManyCallers(t *testing.T) {
	s := newStand(t, "mishapcallers")
	p := runProgram(t, s.node(), "/usr/bin/prlimit", append(append([]string{"--nofile=128", agentPath(s.node())},
		s.node().AgentFlags()...), "--healthz-ip=0.0.0.0")...)
	for range 100 { // what probes cost is no growth
		must(t, s.node().Probe(t.Context(), "/readyz"))
	}
	before := memory(t, p)
	const callers, own, port = 10000, 1000, 10256
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if need := uint64(callers + own + 1000); limit.Cur < need {
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: need, Max: max(limit.Max, need)}))
	}
	gateway := s.node().Subnets()[0].Masked().Addr().Next()
	var open []int
	t.Cleanup(func() {
		for _, fd := range open {
			_ = unix.Close(fd)
		}
	})
	calls := func(times int, to netip.Addr) func() error {
		return func() error {
			for range times {
				fd, err := call(to, port)
				if err != nil {
					return err
				}
				open = append(open, fd)
			}
			return nil
		}
	}
	must(t, s.node().Pods()[0].Do(calls(callers, gateway)))
	must(t, s.node().Do(calls(own, netip.MustParseAddr("127.0.0.1"))))
	s.harm()
	s.mustHeal()
	must(t, s.node().Probe(t.Context(), "/readyz"))
	after := memory(t, p)
	t.Logf("%d connections: the agent's largest resident memory was %d kB before, %d kB after", callers+own, before, after)
	if after > before+20<<10 {
		t.Errorf("the agent's memory grew from %d to %d kB", before, after)
	}
	testwait.Nil(t, "the agent keeps few connections", func() error {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID))
		if err == nil && len(entries) > 80 {
			err = fmt.Errorf("it has %d files open", len(entries))
		}
		return err
	})
	s.mustHaveLostNothing()
}

// call opens a connection and asks once.
func call(to netip.Addr, port int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fd, err
	}
	if err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: to.As4()}); err == nil {
		_, err = unix.SendmsgN(fd, []byte("GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"), nil, nil, unix.MSG_NOSIGNAL)
	}
	if err == unix.EPIPE || err == unix.ECONNRESET { // the agent was quicker
		err = nil
	}
	return fd, err
}

var largest = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// memory returns the largest resident memory that a process has had, in kB.
func memory(t *testing.T, p host.Process) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	must(t, err)
	m := largest.FindSubmatch(status)
	if m == nil {
		t.Fatalf("no VmHWM in %s", status)
	}
	kB, err := strconv.Atoi(string(m[1]))
	must(t, err)
	return kB
}
