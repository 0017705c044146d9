package plugin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/policy/announce/message"
)

// kubeArgs are the CNI_ARGS of containerd.
const kubeArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=a;K8S_POD_UID=u-1"

// fakeAgent is what listens beside subnet.env.
type fakeAgent struct {
	mu   sync.Mutex
	told []message.Pod
}

func (a *fakeAgent) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.told)
}

// listen answers each line with the next of the answers, from the last one on with that. None at all hangs.
func (n *node) listen(answers ...string) *fakeAgent {
	n.t.Helper()
	l, err := net.Listen("unix", message.Socket(filepath.Join(n.dir, "subnet.env")))
	if err != nil {
		n.t.Fatal(err)
	}
	a, hang := &fakeAgent{}, make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				line, err := bufio.NewReader(conn).ReadBytes('\n')
				var p message.Pod
				if err != nil || json.Unmarshal(line, &p) != nil {
					n.t.Errorf("told %q, %v", line, err)
				}
				a.mu.Lock()
				answer := ""
				if len(answers) > 0 {
					answer = answers[min(len(a.told), len(answers)-1)]
				}
				a.told = append(a.told, p)
				a.mu.Unlock()
				if len(answers) == 0 {
					<-hang
				}
				_, _ = conn.Write([]byte(answer)) // the plugin may be gone
			})
		}
	})
	n.t.Cleanup(func() {
		l.Close()
		close(hang)
		all.Wait()
	})
	return a
}

// TestAnnounce: ADD tells the agent the pod's addresses and waits for its answer, and DEL tells that they are given back.
func TestAnnounce(t *testing.T) {
	for _, env := range []string{envV4, envV6, envDual} {
		n, pod := newNode(t, env), newNamespace(t)
		n.args = kubeArgs
		agent := n.listen("ok\n")
		added := n.must("ADD", "a", pod, n.config(nil))
		result, err := types100.NewResult(added)
		if err != nil {
			t.Fatal(err)
		}
		want := message.Pod{Version: 1, Namespace: "shop", Name: "web-0", UID: "u-1"}
		for _, ip := range result.(*types100.Result).IPs {
			addr, _ := netip.AddrFromSlice(ip.Address.IP)
			want.Addresses = append(want.Addresses, addr.Unmap())
		}
		n.must("DEL", "a", pod, n.withPrev(added))
		n.must("DEL", "a", "", n.config(nil)) // which gives nothing back
		gone := want
		gone.Gone = true
		if got := fmt.Sprint(agent.told); got != fmt.Sprint([]message.Pod{want, gone}) {
			t.Errorf("told %s, want %v and %v", got, want, gone)
		}
		n.mustBeClean(pod)
	}
}

// TestAnnounceNothing: the agent hears of no pod that it cannot know.
func TestAnnounceNothing(t *testing.T) {
	for _, args := range []string{"", "IgnoreUnknown=1", "K8S_POD_NAMESPACE=shop", "K8S_POD_NAME=web-0", "K8S_POD_NAMESPACE=;K8S_POD_NAME="} {
		n, pod := newNode(t, envV4), newNamespace(t)
		n.args = args
		agent := n.listen("ok\n")
		n.must("ADD", "a", pod, n.config(nil))
		n.must("DEL", "a", pod, n.config(nil))
		if len(agent.told) > 0 {
			t.Errorf("%q: told %v", args, agent.told)
		}
	}
	n, pod := newNode(t, envV4), newNamespace(t)
	n.args = kubeArgs
	agent := n.listen("ok\n")
	for _, cmd := range []string{"ADD", "DEL"} {
		c := n.command(cmd, "a", pod, n.config(nil))
		c.Env = append(slices.Clone(c.Env), "CNI_IFNAME=net1") // a second interface, whose addresses Kubernetes never learns
		inside(t, n.ns, c.Start)
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	if len(agent.told) > 0 {
		t.Errorf("net1: told %v", agent.told)
	}
	n.must("DEL", "a", "", n.config(nil))
	n.must("ADD", "b", pod, n.config(map[string]any{"subnetFile": filepath.Join(n.dir, "subnet.env")}))
	if len(agent.told) != 1 {
		t.Errorf("eth0: told %v", agent.told)
	}
}

// TestAnnounceInVain: whatever the agent does, the pod is wired, and DEL ends too. Where the plugin waits in vain until its
// limit, it says that the agent does not answer; where it says something else, it has waited for nothing.
func TestAnnounceInVain(t *testing.T) {
	tests := []struct {
		name  string
		agent func(n *node)
		says  string
	}{
		{"absent", func(*node) {}, ""},
		{"refuses", func(n *node) { n.listen("pod shop/web-0: its policies are not known yet\n") }, "the agent answers: pod shop/web-0: its policies"},
		{"hangs", func(n *node) { n.listen() }, "the agent does not answer"},
		{"closes", func(n *node) { n.listen("") }, "read the agent's answer"},
		{"talks on", func(n *node) { n.listen(strings.Repeat("x", 100_000)) }, "read the agent's answer"},
		{"is frozen", func(n *node) { frozen(n, 10) }, "the agent does not answer"},
		{"is frozen, and others wait", func(n *node) { frozen(n, 0) }, "tell the agent of the pod"},
		{"was killed", func(n *node) {
			l := frozen(n, 0)
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			l.Close()
		}, "tell the agent of the pod"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, pod := newNode(t, envDual), newNamespace(t)
			n.args = kubeArgs
			tt.agent(n)
			began := time.Now()
			r := n.call("ADD", "a", pod, n.config(nil))
			t.Logf("ADD took %s", time.Since(began).Round(time.Millisecond))
			if r.failed != nil {
				t.Fatalf("ADD: %v", r.failed)
			}
			if text := string(r.stderr); !strings.Contains(text, tt.says) || (text == "") != (tt.says == "") || strings.Count(text, "\n") > 1 {
				t.Errorf("standard error is %q, want one line with %q", text, tt.says)
			}
			if _, err := types100.NewResult(r.stdout); err != nil {
				t.Errorf("the result: %v", err)
			}
			began = time.Now()
			n.must("DEL", "a", pod, n.withPrev(r.stdout))
			t.Logf("DEL took %s", time.Since(began).Round(time.Millisecond))
			n.mustBeClean(pod)
		})
	}
}

// frozen listens like an agent that was stopped: the kernel takes some connections, and nobody reads from them.
func frozen(n *node, backlog int) net.Listener {
	n.t.Helper()
	path := message.Socket(filepath.Join(n.dir, "subnet.env"))
	l, err := net.Listen("unix", path)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { l.Close() })
	raw, err := l.(*net.UnixListener).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = syscall.Listen(int(fd), backlog) })
	}
	if err != nil {
		n.t.Fatal(err)
	}
	if backlog == 0 { // one connection fits nevertheless
		conn, err := net.Dial("unix", path)
		if err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() { conn.Close() })
	}
	return l
}

// TestAnnounceLimits: both limits are what an ADD and a DEL of a pod may take longer, and the waiting ends with the limit,
// and with the context before that.
func TestAnnounceLimits(t *testing.T) {
	if message.AddLimit > 2*time.Second || message.DelLimit > 200*time.Millisecond {
		t.Errorf("ADD waits for %s, DEL for %s", message.AddLimit, message.DelLimit)
	}
	n := newNode(t, envV4)
	agent := n.listen()
	c := &config{subnetFile: filepath.Join(n.dir, "subnet.env")}
	tell := func(ctx context.Context, limit time.Duration) <-chan error {
		done := make(chan error, 1)
		go func() {
			done <- c.tellAgent(ctx, limit, ipam.Owner{Container: "a", Dev: "eth0"}, kubeArgs, []netip.Addr{netip.MustParseAddr("10.244.1.2")}, false)
		}()
		return done
	}
	wantEnd := func(done <-chan error) {
		t.Helper()
		select {
		case err := <-done:
			if err == nil || err.Error() != "the agent does not answer" {
				t.Errorf("it ends with %v", err)
			}
		case <-time.After(testwait.Limit):
			t.Fatal("it waits on")
		}
	}
	wantEnd(tell(t.Context(), time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	done := tell(ctx, time.Hour)
	testwait.Until(t, "the agent is told", func() bool { return agent.count() == 2 })
	cancel()
	wantEnd(done)
}

// TestAnnounceStopped: a signal while ADD waits for the agent ends the waiting. The runtime has the result already.
func TestAnnounceStopped(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	n.args = kubeArgs
	agent := n.listen()
	c := n.command("ADD", "a", pod, n.config(nil))
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	inside(t, n.ns, c.Start)
	testwait.Until(t, "the agent is told", func() bool { return agent.count() == 1 })
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r := n.reply(c.Wait(), &stdout, &stderr)
	if r.failed != nil {
		t.Errorf("ended with %v", r.failed)
	}
	n.must("DEL", "a", pod, n.withPrev(r.stdout))
	n.mustBeClean(pod)
}
