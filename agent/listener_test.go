package agent

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"golang.org/x/sys/unix"
)

// caller is one connection to a server.
type caller struct {
	net.Conn
	answers *bufio.Reader
}

func (c caller) ask() error {
	if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.answers, nil)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	return err
}

// TestServeBudget: of connections that never end only the newest stay, and they take no place of those from this machine.
func TestServeBudget(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	go func() {
		_ = Serve(t.Context(), l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	}()
	// One from 127.0.0.2 to 127.0.0.1 has two addresses, as one from another machine has.
	dial := func(from string) caller {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", l.Addr().String())
		must(t, err)
		t.Cleanup(func() { c.Close() })
		return caller{c, bufio.NewReader(c)}
	}
	probe := dial("127.0.0.1")
	must(t, probe.ask())
	var all []caller
	for range 1000 {
		c := dial("127.0.0.2")
		must(t, c.ask())
		all = append(all, c)
	}
	for _, c := range all[:len(all)-mostConnections] {
		if _, err := c.answers.ReadByte(); err == nil { // it waits while the connection is open
			t.Fatal("an answer that nobody asked for")
		}
	}
	for i, c := range append(all[len(all)-mostConnections:], probe, dial("127.0.0.1")) {
		if err := c.ask(); err != nil {
			t.Errorf("connection %d of those that stay: %v", i+1, err)
		}
	}
}

// TestConnectionBudget: there are connections, and descriptors for all else.
func TestConnectionBudget(t *testing.T) {
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if n := connectionBudget(); n < 2 || limit.Cur >= 512 && n != mostConnections {
		t.Errorf("of %d descriptors %d are for connections", limit.Cur, n)
	}
}
