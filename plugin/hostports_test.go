package plugin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/plugin/delegate"
	"github.com/twill-net/twill/plugin/ipam"
)

// useIptables makes one variant what the programs iptables and ip6tables are.
func useIptables(t *testing.T, variant string) {
	t.Helper()
	dir := t.TempDir()
	for _, family := range []string{"iptables", "ip6tables"} {
		path, err := exec.LookPath(family + "-" + variant)
		if err != nil {
			t.Fatal(err)
		}
		text := "#!/bin/sh\nexec " + path + " \"$@\"\n"
		if err := os.WriteFile(filepath.Join(dir, family), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// allRules is everything about host ports that the node has, in all three places.
func allRules(t *testing.T, n *node) string {
	t.Helper()
	var all strings.Builder
	inside(t, n.ns, func() error {
		for _, c := range []string{"iptables-legacy-save -t nat", "ip6tables-legacy-save -t nat",
			"iptables-nft-save -t nat", "ip6tables-nft-save -t nat", "nft list ruleset"} {
			out, err := exec.Command("sh", "-c", c).Output()
			if err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			all.Write(out)
		}
		return nil
	})
	return all.String()
}

// leads reports whether a rule leads a port to one of the pod's addresses.
func leads(rules string) bool {
	return strings.Contains(rules, "10.244.1.2:80") || strings.Contains(rules, "[fd00:10:244:1::2]:80")
}

// forget leaves a pod as a runtime that crashed does: its pair is gone, and nobody sends a DEL.
func forget(t *testing.T, n *node, pod string) {
	t.Helper()
	deleteLink(t, pod, "eth0")
	if r := n.reserved(); len(r) != 2 {
		t.Fatalf("reservations %q, want the two of the pod", r)
	}
}

// places are the ways of a node to lead its ports to pods.
var places = []struct{ name, variant, backend string }{
	{"iptables-legacy", "legacy", "iptables"}, {"iptables-nft", "nft", "iptables"}, {"nftables", "nft", "nftables"},
}

// TestHostPortsOfAnotherIptables frees the addresses of a forgotten pod in a process that has another
// iptables than the node, as an agent in a container does: no rule of any kind may lead to them then. It does
// not matter whether anybody still knows that there were host ports.
func TestHostPortsOfAnotherIptables(t *testing.T) {
	for _, place := range places {
		for _, recorded := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/recorded=%t", place.name, recorded), func(t *testing.T) {
				n, pod, other := newNode(t, envDual), newNamespace(t), newNamespace(t)
				ports := runtimeConfig(hostPort)
				ports["portmap"] = map[string]string{"backend": place.backend}
				t.Run("add", func(t *testing.T) {
					useIptables(t, place.variant)
					n.must("ADD", "a", pod, n.config(ports))
					n.must("ADD", "other", other, n.config(map[string]any{"portmap": ports["portmap"],
						"runtimeConfig": map[string]any{"portMappings": []portMapping{{8081, 81, "tcp", ""}}}}))
				})
				before := allRules(t, n)
				if !strings.Contains(before, "10.244.1.2:80") || !strings.Contains(before, "[fd00:10:244:1::2]:80") {
					t.Fatalf("portmap made no rules:\n%s", before)
				}
				deleteLink(t, pod, "eth0")
				if !recorded {
					if err := os.RemoveAll(filepath.Join(n.storeDir(), indexDir)); err != nil {
						t.Fatal(err)
					}
				}
				useIptables(t, map[string]string{"legacy": "nft", "nft": "legacy"}[place.variant])
				inside(t, n.ns, func() error { return removeAllocation(n, "a") })
				after := allRules(t, n)
				if leads(after) {
					t.Errorf("rules lead to addresses that are free:\n%s", after)
				}
				if !strings.Contains(after, "10.244.1.3:81") || !strings.Contains(after, "[fd00:10:244:1::3]:81") {
					t.Errorf("the other pod's rules are gone:\n%s", after)
				}
				if r := n.reserved(); r["10.244.1.2"] != "" || r["fd00:10:244:1::2"] != "" || r["10.244.1.3"] == "" {
					t.Errorf("reservations %q, want the other pod's", r)
				}
			})
		}
	}
}

// removeAllocation does what the agent does about a pod that is gone.
func removeAllocation(n *node, container string) error {
	allocations, err := ipam.Store(n.storeDir()).Allocations()
	if err != nil {
		return err
	}
	for _, a := range allocations {
		if a.Owner.Container == container {
			r := &Remover{Path: binaries}
			return r.Remove(context.Background(), a)
		}
	}
	return fmt.Errorf("%s holds nothing", container)
}

// TestHostPortsThatStay keeps the addresses where the rules that lead to them cannot be removed or read.
func TestHostPortsThatStay(t *testing.T) {
	for name, broken := range map[string]string{
		"no program": "", "it fails": "#!/bin/sh\nexit 4\n", "it does nothing": "#!/bin/sh\ncase $0 in *save) exec REAL \"$@\";; esac\n",
	} {
		t.Run(name, func(t *testing.T) {
			n, pod := newNode(t, envDual), newNamespace(t)
			n.must("ADD", "a", pod, n.config(runtimeConfig(hostPort)))
			forgetPorts(t, n, pod)
			dir := t.TempDir()
			for _, program := range []string{"iptables", "ip6tables", "iptables-nft-save", "ip6tables-nft-save",
				"iptables-nft-restore", "ip6tables-nft-restore"} {
				path, err := exec.LookPath(program)
				if err != nil {
					t.Fatal(err)
				}
				if broken != "" {
					if err := os.WriteFile(filepath.Join(dir, program),
						[]byte(strings.ReplaceAll(broken, "REAL", path)), 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Setenv("PATH", dir)
			inside(t, n.ns, func() error {
				if err := removeAllocation(n, "a"); err == nil {
					t.Error("no error, though the rules stayed")
				}
				return nil
			})
			if r := n.reserved(); r["10.244.1.2"] == "" || r["fd00:10:244:1::2"] == "" {
				t.Errorf("reservations %q: an address is free that rules lead to", r)
			}
		})
	}
}

// TestHostPortsBesideOthersRules keeps an address where somebody put a rule into the table that iptables
// cannot print: then iptables-save ends well and prints none of the table's rules.
func TestHostPortsBesideOthersRules(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	n.must("ADD", "a", pod, n.config(runtimeConfig(hostPort)))
	forgetPorts(t, n, pod)
	inside(t, n.ns, func() error {
		const set = "add set ip nat some { type ipv4_addr; }; add chain ip nat others; add rule ip nat others ip saddr @some dnat to 192.0.2.1"
		if out, err := exec.Command("nft", set).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if err := removeAllocation(n, "a"); err == nil || !strings.Contains(err.Error(),
			"does not print the chain CNI-HOSTPORT-DNAT") {
			t.Errorf("error %v, want one about the chain CNI-HOSTPORT-DNAT", err)
		}
		return nil
	})
	if r := n.reserved(); r["10.244.1.2"] == "" {
		t.Errorf("reservations %q: an address is free that rules lead to", r)
	}
}

// TestHostPortsOfNoTool keeps an address where the only tools are another iptables', or none for nftables.
func TestHostPortsOfNoTool(t *testing.T) {
	for backend, want := range map[string]string{"iptables": "is no iptables-nft, and there are rules of that",
		"nftables": "run nft -a -n list table"} {
		t.Run(backend, func(t *testing.T) {
			n, pod := newNode(t, envV4), newNamespace(t)
			ports := runtimeConfig(hostPort)
			ports["portmap"] = map[string]string{"backend": backend}
			n.must("ADD", "a", pod, n.config(ports))
			forgetPorts(t, n, pod)
			inside(t, n.ns, func() error { return exec.Command("iptables-legacy", "-t", "nat", "-N", "OTHERS").Run() })
			dir := t.TempDir()
			legacy, err := exec.LookPath("iptables-legacy-save")
			if err == nil {
				err = os.Symlink(legacy, filepath.Join(dir, "iptables-save"))
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir)
			inside(t, n.ns, func() error {
				if err := removeAllocation(n, "a"); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %s", err, want)
				}
				return nil
			})
			if r := n.reserved(); r["10.244.1.2"] == "" {
				t.Errorf("reservations %q: an address is free that rules lead to", r)
			}
		})
	}
}

// forgetPorts leaves a pod's reservations and rules, and nothing that tells of the rules.
func forgetPorts(t *testing.T, n *node, pod string) {
	t.Helper()
	deleteLink(t, pod, "eth0")
	if err := os.RemoveAll(filepath.Join(n.storeDir(), indexDir)); err != nil {
		t.Fatal(err)
	}
}

// TestNoIptablesComesIntoBeing holds that to look for rules makes no tables where there are none.
func TestNoIptablesComesIntoBeing(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	n.must("ADD", "a", pod, n.config(nil))
	forget(t, n, pod)
	inside(t, n.ns, func() error { return removeAllocation(n, "a") })
	n.mustBeClean(pod)
	inside(t, n.ns, func() error {
		for _, path := range []string{"/proc/thread-self/net/ip_tables_names",
			"/proc/thread-self/net/ip6_tables_names"} {
			if tables, err := os.ReadFile(path); len(tables) > 0 {
				t.Errorf("%s says %q, %v; want no tables", path, tables, err)
			}
		}
		out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		if len(out) > 0 {
			t.Errorf("nft list ruleset: %s", out)
		}
		return err
	})
}

// stuckPortmap is a directory with a portmap that starts a program which hangs, as iptables does behind its
// lock, and makes a file there.
func stuckPortmap(t *testing.T) (dir, runs string) {
	t.Helper()
	dir = t.TempDir()
	runs = filepath.Join(dir, "runs")
	if err := os.WriteFile(filepath.Join(dir, "portmap"), []byte("#!/bin/sh\n: >"+runs+"\nsleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, runs
}

// limit sets the limits for programs for a test.
func limit(t *testing.T, program, turn time.Duration) {
	oldProgram, oldTurn := delegate.ProgramTimeout, delegate.TurnTimeout
	delegate.ProgramTimeout, delegate.TurnTimeout = program, turn
	t.Cleanup(func() { delegate.ProgramTimeout, delegate.TurnTimeout = oldProgram, oldTurn })
}

// TestStuckPortmap holds that a portmap that hangs ends with an error that says so, together with what it
// started, and that its pod's addresses stay reserved; pods that wait for it get an error after a while.
func TestStuckPortmap(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	n.must("ADD", "a", pod, n.config(runtimeConfig(hostPort)))
	deleteLink(t, pod, "eth0")
	limit(t, time.Hour, 100*time.Millisecond)
	allocations, err := ipam.Store(n.storeDir()).Allocations()
	if err != nil || len(allocations) != 1 {
		t.Fatal(allocations, err)
	}
	dir, runs := stuckPortmap(t)
	r, done := &Remover{Path: dir}, make(chan error)
	remove := func(ctx context.Context) {
		go func() { inside(t, n.ns, func() error { done <- r.Remove(ctx, allocations[0]); return nil }) }()
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	remove(ctx)
	testwait.Until(t, "portmap runs", func() bool { _, err := os.Stat(runs); return err == nil })
	inside(t, n.ns, func() error {
		if err := (&Remover{Path: binaries}).Remove(context.Background(), allocations[0]); err == nil {
			t.Error("two have their turn at once")
		} else if !strings.Contains(err.Error(), "look for a portmap that hangs") {
			t.Errorf("who waits gets %q", err)
		}
		return nil
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("a portmap that was stopped has succeeded")
	}
	delegate.ProgramTimeout = 300 * time.Millisecond
	remove(t.Context())
	if err := <-done; err == nil || !strings.Contains(err.Error(),
		"portmap DEL: it took too long and was stopped after 300ms: look for what holds") {
		t.Errorf("a portmap that hangs gives %v", err)
	}
	turn, err := ipam.Lock(context.Background(), n.turnLock())
	if err != nil {
		t.Fatalf("after it was stopped: %v", err)
	}
	_ = turn.Close()
	if r := n.reserved(); r["10.244.1.2"] == "" {
		t.Errorf("reservations %q: the address is free, and rules lead to it", r)
	}
	n.must("DEL", "a", "", n.config(nil))
	n.mustBeClean(pod)
	if leads(allRules(t, n)) {
		t.Error("rules are left")
	}
}
