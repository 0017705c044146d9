package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/plugin/ipam"
)

// TestPluginsWaitForTheirTurn holds that ADD, DEL and the removal of what is left each wait while another
// pod's portmap may run.
func TestPluginsWaitForTheirTurn(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	for _, cmd := range []string{"ADD", "DEL"} {
		turn, err := ipam.Lock(context.Background(), n.turnLock())
		if err != nil {
			t.Fatal(err)
		}
		before := rules(t, n.ns)
		c := n.command(cmd, "a", pod, n.config(runtimeConfig(hostPort)))
		var stdout, stderr bytes.Buffer
		c.Stdout, c.Stderr = &stdout, &stderr
		inside(t, n.ns, c.Start)
		waitsForLock(t, c.Process.Pid)
		if now := rules(t, n.ns); strings.Count(now, "-A CNI-DN-") != strings.Count(before, "-A CNI-DN-") {
			t.Errorf("%s changed rules before it had its turn:\n%s", cmd, now)
		}
		_ = turn.Close()
		if r := n.reply(c.Wait(), &stdout, &stderr); r.failed != nil {
			t.Errorf("%s: %v", cmd, r.failed)
		}
		if made := strings.Contains(rules(t, n.ns), "-A CNI-DN-"); made != (cmd == "ADD") {
			t.Errorf("after %s there are rules: %t", cmd, made)
		}
	}
	n.mustBeClean(pod)
}

// TestPortmapDiesWithItsPlugin kills an ADD while its portmap runs, in which nobody else has the turn:
// portmap must not go on when the runtime deletes the pod.
func TestPortmapDiesWithItsPlugin(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	n.path = t.TempDir()
	pidFile := filepath.Join(n.path, "pid")
	script := "#!/bin/sh\necho $$ >" + pidFile + ".new\nmv " + pidFile + ".new " + pidFile + "\nexec sleep 1000\n"
	if err := os.WriteFile(filepath.Join(n.path, "portmap"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c := n.command("ADD", "a", pod, n.config(runtimeConfig(hostPort)))
	inside(t, n.ns, c.Start)
	pid := 0
	testwait.Until(t, "portmap runs", func() bool {
		data, err := os.ReadFile(pidFile)
		if err == nil {
			_, err = fmt.Sscan(string(data), &pid)
		}
		return err == nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if turn, err := ipam.Lock(ctx, n.turnLock()); err == nil {
		_ = turn.Close()
		t.Error("another has the turn while portmap runs")
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	testwait.Until(t, "portmap is gone", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return errors.Is(err, os.ErrNotExist) || bytes.Contains(stat, []byte(") Z "))
	})
	n.path = ""
	n.must("DEL", "a", pod, n.config(nil))
	n.mustBeClean(pod)
}

// TestPodsInterface holds what a pod's interface has beside addresses and routes: a broadcast address, and
// IPv6 addresses that stay when the pod sets the interface down and up.
func TestPodsInterface(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	n.must("ADD", "a", pod, n.config(nil))
	h := netlinkIn(t, pod)
	eth0, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := h.AddrList(eth0, netlink.FAMILY_V4)
	if err != nil || len(addrs) != 1 || addrs[0].Broadcast.String() != "10.244.1.255" {
		t.Errorf("eth0 has the addresses %v, %v; want one with the broadcast address 10.244.1.255", addrs, err)
	}
	if err := errors.Join(h.LinkSetDown(eth0), h.LinkSetUp(eth0)); err != nil {
		t.Fatal(err)
	}
	addrs, err = h.AddrList(eth0, netlink.FAMILY_V6)
	kept := false
	for _, a := range addrs {
		kept = kept || rtnl.Prefix(a.IPNet) == prefix("fd00:10:244:1::2/64")
	}
	if !kept || err != nil {
		t.Errorf("down and up again eth0 has the IPv6 addresses %v, %v; want its own as before", addrs, err)
	}
}
