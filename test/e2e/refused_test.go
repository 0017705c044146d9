package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// withoutTun starts an agent that has no /dev/net/tun, as in a container.
const withoutTun = `#!/bin/sh
exec unshare --mount --propagation private sh -c 'mount -t tmpfs none /dev/net && exec "$0" "$@"' %AGENT% "$@"
`

// TestSwitchRefused: a node that lacks what the next backend needs stays with the one before, is not ready, and tells its
// peers nothing. With the config of before nothing was lost.
func TestSwitchRefused(t *testing.T) {
	agent := filepath.Join(labtest.BinDir(t), "twilld")
	script := filepath.Join(t.TempDir(), "twilld-without-tun")
	if err := os.WriteFile(script, []byte(strings.ReplaceAll(withoutTun, "%AGENT%", agent)), 0o755); err != nil {
		t.Fatal(err)
	}
	c := cluster{t, labtest.Up(t, lab.Spec{Name: "e2erefused", Store: lab.File, Nodes: 3, Pods: 1, Agents: map[string]string{"node1": script}})}
	streams, n := c.streams(), c.lab.Nodes()[0]
	before := marks(streams)
	c.configure("udp")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	restarted := make(chan error, 1)
	go func() { restarted <- n.RestartAgent(ctx) }()
	testwait.Nil(t, "node1 says what it lacks", func() error {
		_, err := n.Ask(ctx, "/readyz")
		const want = "the backend udp cannot work on this node, which stays with vxlan: make the TUN device flannel0 by /dev/net/tun: " +
			"open /dev/net/tun: no such file or directory"
		if err == nil {
			return errors.New("it is ready")
		}
		if strings.Contains(err.Error(), want) {
			return nil
		}
		return err
	})
	cancel()
	if err := <-restarted; err == nil {
		t.Error("node1 became ready")
	}
	c.matrix()
	c.configure("vxlan")
	c.must(n.RestartAgent(t.Context()))
	c.mustHaveOnly("vxlan")
	for i, s := range streams {
		if loss, err := s.Between(t.Context(), before[i], s.Mark()); err != nil || loss.Lost > 0 {
			t.Errorf("%s, sent every %s: %v", loss, 5*time.Millisecond, err)
		}
	}
}
