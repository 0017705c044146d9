package announce

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/announce/message"
	"github.com/twill-net/twill/policy/policytest"
)

// endpoint is what a Server works on, and where it listens.
type endpoint struct {
	*testing.T
	*cluster
	socket string
	log    *strings.Builder

	mu      sync.Mutex
	subnets []netip.Prefix
	flushes int
	flush   func(context.Context) error
}

func newEndpoint(t *testing.T, pods ...*policy.Pod) *endpoint {
	t.Helper()
	return &endpoint{T: t, cluster: started(t, pods...), log: &strings.Builder{}, subnets: policytest.New(1).Site(1).Subnets}
}

// serve runs a Server of node 1 for the time of the test. Its requests may take as long as a busy machine needs.
func serve(t *testing.T, pods ...*policy.Pod) *endpoint {
	t.Helper()
	e := newEndpoint(t, pods...)
	s := e.server()
	s.within = testwait.Limit
	e.listen(s)
	return e
}

// listen runs a Server at a socket for the time of the test.
func (e *endpoint) listen(s *Server) {
	e.Helper()
	e.socket = message.Socket(filepath.Join(e.TempDir(), "subnet.env"))
	l, err := Listen(e.Context(), e.socket)
	if err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(e.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	e.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			e.Error(err)
		}
	})
}

func (e *endpoint) server() *Server {
	return &Server{Pods: e.Source, Log: slog.New(slog.NewTextHandler(e.log, nil)),
		Subnets: func() []netip.Prefix {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.subnets
		},
		Flush: func(ctx context.Context) error {
			e.mu.Lock()
			e.flushes++
			flush := e.flush
			e.mu.Unlock()
			if flush != nil {
				return flush(ctx)
			}
			return nil
		}}
}

// send sends a message as the plugin does, which gives up earlier.
func (e *endpoint) send(m message.Pod) error {
	ctx, cancel := context.WithTimeout(e.Context(), testwait.Limit)
	defer cancel()
	return message.Send(ctx, e.socket, m)
}

// ask sends some bytes, and returns the answer.
func (e *endpoint) ask(text string) string {
	e.Helper()
	conn, err := net.Dial("unix", e.socket)
	if err != nil {
		e.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testwait.Limit))
	if _, err := conn.Write([]byte(text)); err != nil {
		e.Fatal(err)
	}
	if !strings.HasSuffix(text, "\n") {
		_ = conn.(*net.UnixConn).CloseWrite()
	}
	answer, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) { // which tells that some of the text was not read
		e.Fatal(err)
	}
	return string(answer)
}

// TestServe: a pod that starts is told and enforced before the answer comes, and forgotten after DEL.
func TestServe(t *testing.T) {
	p := newPod("web", "u-1")
	e := serve(t, p)
	e.flush = func(context.Context) error {
		e.has("when it is enforced", p, x, x6)
		return nil
	}
	if err := e.send(about(p, x, x6)); err != nil {
		t.Error(err)
	}
	gone := about(p, x, x6)
	gone.Gone = true
	if err := e.send(gone); err != nil {
		t.Error(err)
	}
	e.has("after DEL", p)
	if e.flushes != 1 {
		t.Errorf("flushed %d times, want once for ADD", e.flushes)
	}
	info, err := os.Stat(e.socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v (%v), want 0600", info.Mode(), err)
	}
	if e.log.Len() > 0 {
		t.Errorf("logged:\n%s", e.log)
	}
}

// TestServeLate: the answer waits until the pod is known, and until its policies are enforced.
func TestServeLate(t *testing.T) {
	p := newPod("web", "u-1")
	e := serve(t)
	var known atomic.Bool
	e.flush = func(context.Context) error {
		if !known.Load() {
			t.Error("enforced before the pod is known")
		}
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- e.send(about(p, x)) }()
	testwait.Until(t, "the server waits for the pod", func() bool {
		e.Source.mu.Lock()
		defer e.Source.mu.Unlock()
		return len(e.early) == 1
	})
	if len(done) > 0 {
		t.Fatalf("answered before the pod is known: %v", <-done)
	}
	known.Store(true)
	e.set(nil, p)
	if err := <-done; err != nil {
		t.Error(err)
	}
	e.has("after ADD", p, x)
}

// TestServeErrors: what cannot be done is said, before the plugin gives up.
func TestServeErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPod("web", "u-1")
		e := newEndpoint(t, p)
		e.flush = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		s := e.server()
		send := func(m message.Pod) string {
			client, server := net.Pipe()
			go s.serve(t.Context(), server)
			began := time.Now()
			if err := json.NewEncoder(client).Encode(m); err != nil {
				t.Error(err)
			}
			answer, err := io.ReadAll(client)
			if took := time.Since(began); err != nil || took > limit || took >= message.AddLimit {
				t.Errorf("%v: answered after %v: %v", m, took, err)
			}
			return string(answer)
		}
		for want, m := range map[string]message.Pod{
			"is not one of this node's": about(p, netip.MustParseAddr("10.244.2.9")),
			"are not known yet":         about(newPod("other", "u-2"), y),
			"deadline exceeded":         about(p, x),
		} {
			if answer := send(m); !strings.Contains(answer, want) {
				t.Errorf("%v: %q, want %q", m, answer, want)
			}
		}
		e.subnets = nil
		if answer := send(about(p, x)); !strings.Contains(answer, "no lease") {
			t.Errorf("without a lease: %q", answer)
		}
		if strings.Count(e.log.String(), "\n") != 1 {
			t.Errorf("want one line of log:\n%s", e.log)
		}
	})
}

// TestRefused: what the server refuses is what the plugin gets as an error.
func TestRefused(t *testing.T) {
	p := newPod("web", "u-1")
	e := serve(t, p)
	if err := e.send(about(p, netip.MustParseAddr("10.244.2.9"))); err == nil || !strings.Contains(err.Error(), "is not one of this node's") {
		t.Error(err)
	}
}

// valid is a message as the plugin sends it.
const valid = `{"version":1,"namespace":"default","name":"web","uid":"u-1","addresses":["10.244.1.2"]}`

// TestGarbage: what is no message is refused with a sentence, and changes nothing.
func TestGarbage(t *testing.T) {
	p := newPod("web", "u-1")
	e := serve(t, p)
	alter := func(key string, value any) string {
		var m map[string]any
		if err := json.Unmarshal([]byte(valid), &m); err != nil {
			t.Fatal(err)
		}
		m[key] = value
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(text) + "\n"
	}
	for _, test := range []struct{ text, want string }{
		{"", "ends after 0 bytes"},
		{valid, "want a line of JSON"},
		{"\n", "want an object"},
		{"GET / HTTP/1.1\r\n", "want an object"},
		{"\x00\xff\n", "want an object"},
		{"[]\n", "want an object"},
		{strings.Repeat("x", message.MaxSize+9) + "\n", "too long"},
		{alter("version", 2), "version 2"},
		{alter("namespace", ""), "namespace"},
		{alter("namespace", "a/b"), "namespace"},
		{alter("namespace", strings.Repeat("a", 64)), "namespace"},
		{alter("name", "Web"), "pod name"},
		{alter("name", strings.Repeat("a", 254)), "pod name"},
		{alter("uid", "../1"), "UID"},
		{alter("uid", strings.Repeat("a", 129)), "UID"},
		{alter("addresses", nil), "no addresses"},
		{alter("addresses", []string{"10.244.1.2", "10.244.1.3"}), "at most one of each family"},
		{alter("addresses", []string{"224.0.0.1"}), "unicast"},
		{alter("addresses", []string{""}), "unicast"},
		{alter("addresses", []string{"fe80::1%eth0"}), "unicast"},
		{alter("addresses", []string{"::ffff:10.244.1.2"}), "unicast"},
		{alter("addresses", []string{"10.244.1"}), "want an object"},
	} {
		answer := e.ask(test.text)
		if !strings.Contains(answer, test.want) || strings.Count(answer, "\n") != 1 || len(answer) > 600 {
			t.Errorf("%.60q: the answer is %q, want one line with %q", test.text, answer, test.want)
		}
	}
	e.has("after all this", p)
	if answer := e.ask(valid + "\n" + valid + "\n"); answer != "ok\n" {
		t.Errorf("after all this: %q", answer)
	}
	e.has("after ADD", p, x)
}

// TestHungUp: what a plugin tells that has given up is not taken, as another one may have told something newer.
func TestHungUp(t *testing.T) {
	p := newPod("web", "u-1")
	client, server := pair(t)
	e := serve(t, p)
	s := &Server{Pods: e.Source, Subnets: func() []netip.Prefix { return e.subnets }, Log: slog.New(slog.DiscardHandler),
		Flush: func(context.Context) error { return nil }}
	if _, err := client.Write([]byte(valid + "\n")); err != nil {
		t.Fatal(err)
	}
	client.Close()
	s.serve(t.Context(), server)
	e.has("after the plugin gave up", p)
}

// pair returns the two ends of a connection.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "socket")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("unix", path); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// TestSlow: clients that say nothing keep nobody from being served, and are thrown out.
func TestSlow(t *testing.T) {
	e := newEndpoint(t, newPod("web", "u-1"))
	e.listen(e.server())
	var silent []net.Conn
	for range atOnce / 2 {
		conn, err := net.Dial("unix", e.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(valid[:20])); err != nil {
			t.Fatal(err)
		}
		silent = append(silent, conn)
	}
	if answer := e.ask(valid + "\n"); answer != "ok\n" {
		t.Errorf("the answer is %q", answer)
	}
	for _, conn := range silent {
		_ = conn.SetDeadline(time.Now().Add(testwait.Limit))
		if answer, err := io.ReadAll(conn); err != nil || !bytes.Contains(answer, []byte("read the message")) {
			t.Fatalf("a silent client got %q, %v", answer, err)
		}
	}
}

// TestConcurrent: more clients than are served at once all get an answer.
func TestConcurrent(t *testing.T) {
	var pods []*policy.Pod
	addr := x
	for i := range 3 * atOnce {
		pods = append(pods, newPod(fmt.Sprint("web", i), fmt.Sprint("u-", i)))
	}
	e := serve(t, pods...)
	var clients sync.WaitGroup
	for _, p := range pods {
		m := about(p, addr)
		addr = addr.Next()
		clients.Go(func() {
			if err := e.send(m); err != nil {
				t.Errorf("%s: %v", p, err)
			}
		})
	}
	clients.Wait()
	e.check("after all")
	for i, p := range e.Snapshot().Pods {
		if len(p.Addrs) != 1 {
			t.Errorf("%d: %s has %v", i, p, p.Addrs)
		}
	}
}

// TestListenAgain: an agent that was killed leaves its socket, which the next one takes over.
func TestListenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	for range 2 {
		l, err := Listen(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
	}
	if err := message.Send(t.Context(), path, message.Pod{}); err == nil {
		t.Error("nobody listens, and that is no error")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := message.Send(t.Context(), path, message.Pod{}); err != nil {
		t.Errorf("without a socket: %v", err)
	}
	if _, err := Listen(t.Context(), filepath.Join(t.TempDir(), strings.Repeat("x", 120))); err == nil {
		t.Error("there is a socket of too long a name")
	}
}

// TestStatic: the kubelet's UID of a static pod is not the API server's.
func TestStatic(t *testing.T) {
	m, err := decode([]byte(strings.Replace(valid, "u-1", "0123456789abcdef0123456789abcdef", 1)))
	if err != nil || m.UID != "" {
		t.Errorf("UID %q, %v", m.UID, err)
	}
}

// FuzzDecode: what is taken is the same when it is sent on, and within bounds.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{valid, `{}`, `[]`, strings.Replace(valid, `"10`, `"::1","10`, 1), `{"version":1,"addresses":[null]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := read(bytes.NewReader(append(line, '\n')))
		if err != nil {
			if strings.ContainsAny(err.Error(), "\x00") {
				t.Errorf("the error has bytes of the input: %q", err)
			}
			return
		}
		if len(m.Addresses) == 0 || len(m.Addresses) > 2 || m.Namespace == "" || m.Name == "" || len(m.Namespace) > 63 || len(m.Name) > 253 {
			t.Errorf("taken: %+v", m)
		}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(text)
		if err != nil || again.UID != m.UID || again.Name != m.Name || again.Gone != m.Gone || !slices.Equal(again.Addresses, m.Addresses) {
			t.Errorf("%s: %+v, %v", text, again, err)
		}
	})
}

// TestAcceptError: a listener that fails is tried again, and a closed one ends with the context.
func TestAcceptError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := &failing{cancel: cancel}
	s := &Server{Log: slog.New(slog.DiscardHandler)}
	if err := s.Serve(ctx, l); err != nil {
		t.Error(err)
	}
	if l.times != 2 {
		t.Errorf("accepted %d times", l.times)
	}
}

// failing is a listener without connections.
type failing struct {
	net.Listener
	times  int
	cancel func()
}

func (l *failing) Close() error { return nil }

func (l *failing) Accept() (net.Conn, error) {
	if l.times++; l.times == 2 {
		l.cancel()
	}
	return nil, errors.New("too many open files")
}
