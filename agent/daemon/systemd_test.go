package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
)

// manager is systemd as a service sees it: a socket that hears what the service says.
type manager struct {
	t     *testing.T
	heard chan string
	all   []string
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t, heard: make(chan string, 100)}
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		text := make([]byte, 4096)
		for {
			n, err := conn.Read(text)
			if err != nil {
				return
			}
			m.heard <- string(text[:n])
		}
	}()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "300000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	return m
}

// until waits until the service has said this.
func (m *manager) until(text string) {
	m.t.Helper()
	testwait.Until(m.t, "the service says "+text, func() bool {
		for len(m.heard) > 0 {
			m.all = append(m.all, <-m.heard)
		}
		return m.said(text)
	})
}

// said reports whether the service has said this.
func (m *manager) said(text string) bool { return strings.Contains(strings.Join(m.all, "\n"), text) }

// TestNotify: a service manager hears that the agent has started when the lease is in subnet.env, also the checkpoint's
// while the store is away; what it waits for until then; and that it lives all the time.
func TestNotify(t *testing.T) {
	loopback(t)
	nics{T: t}.run("ip link add eth0 type veth peer name peer0", "ip link set peer0 up", "ip link set eth0 up",
		"ip addr add 10.0.2.15/24 dev eth0", "ip route add default via 10.0.2.2")
	t.Cleanup(func() { nics{T: t}.run("ip link del eth0") })
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(path("net-conf.json"), []byte(`{"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(store ...string) (*manager, func()) {
		m := newManager(t)
		o, err := parseFlags(append(store, "--bridge=", "--net-config-path="+path("net-conf.json"), "--subnet-file="+path("subnet.env"),
			"--checkpoint-file="+path("checkpoint.json")), noEnv, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- serve(ctx, o, slog.New(slog.DiscardHandler)) }()
		return m, func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}

	m, stop := run("--lease-file=" + path("leases.json"))
	m.until("READY=1")
	if _, err := os.Stat(path("subnet.env")); err != nil {
		t.Errorf("READY without subnet.env: %v", err)
	}
	m.until("STATUS=the node is ready")
	m.until("WATCHDOG=1")
	if name, ok := os.LookupEnv("NOTIFY_SOCKET"); ok {
		t.Errorf("children get NOTIFY_SOCKET=%s", name)
	}
	testwait.Until(t, "there is a checkpoint", func() bool {
		_, err := os.Stat(path("checkpoint.json"))
		return err == nil
	})
	stop()
	m.until("STOPPING=1")

	away := []string{"--kube-subnet-mgr", "--kube-api-url=http://127.0.0.1:9", "--node-name=" + hostName(t)}
	m, stop = run(away...)
	m.until("READY=1")
	stop()

	for _, file := range []string{"checkpoint.json", "subnet.env"} {
		if err := os.Remove(path(file)); err != nil {
			t.Fatal(err)
		}
	}
	m, stop = run(away...)
	m.until("STATUS=twilld starts")
	m.until("WATCHDOG=1")
	stop()
	if m.said("READY=1") {
		t.Errorf("READY without a lease: %q", m.all)
	}
}

// TestNotifyNobody: a service manager that reads nothing any more keeps twilld from nothing, and not from ending.
func TestNotifyNobody(t *testing.T) {
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	conn, err := net.ListenUnixgram("unixgram", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other, err := net.DialUnix("unixgram", nil, at)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for err == nil { // until its queue is full
		if err = other.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err == nil {
			_, err = other.Write([]byte("WATCHDOG=1"))
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	m := serviceManager{socket: at.Name, starting: func() (string, bool) { return "starts", false }}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- m.follow(ctx) }()
	testwait.Until(t, "it ends", func() bool { return len(ended) > 0 })
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func hostName(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return strings.ToLower(name)
}
