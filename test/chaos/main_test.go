package chaos

import (
	"fmt"
	"os"
	"testing"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// runAgent starts the node's agent with more flags, in place of the lab's.
func runAgent(t *testing.T, n *lab.Node, flags ...string) host.Process {
	t.Helper()
	return runProgram(t, n, agentPath(n), append(n.AgentFlags(), flags...)...)
}

func agentPath(n *lab.Node) string { return n.DryRun()[0] }

// runProgram runs an agent in place of the lab's until the test ends.
func runProgram(t *testing.T, n *lab.Node, path string, args ...string) host.Process {
	t.Helper()
	must(t, n.StopAgent(t.Context()))
	p, err := n.Start(host.Command{Path: path, Args: args, Env: []string{"PATH=" + os.Getenv("PATH"), "NODE_NAME=" + n.Name}, Log: n.Log()})
	must(t, err)
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	waitReady(t, n)
	return p
}

func waitReady(t *testing.T, n *lab.Node) {
	t.Helper()
	testwait.Nil(t, "the agent of "+n.Name+" is ready", func() error { return n.Probe(t.Context(), "/readyz") })
}

// goesOn returns when a stream has sent so many more pings.
func goesOn(t *testing.T, s *host.Stream, pings host.Mark) {
	t.Helper()
	end := s.Mark() + pings
	testwait.Until(t, fmt.Sprintf("%d pings more", pings), func() bool { return s.Mark() >= end })
}
