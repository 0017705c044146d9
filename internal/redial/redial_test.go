package redial

import (
	"net"
	"testing"
)

func TestRedialClosesWhatIsOpen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var d Dialer
	if d.Last().IsValid() {
		t.Errorf("before the first connection: got %s", d.Last())
	}
	closed, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	open, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if len(d.conns) != 1 {
		t.Errorf("%d connections remembered, want the open one", len(d.conns))
	}
	if got := d.Last().String(); got != l.Addr().String() {
		t.Errorf("the last connection led to %s, want %s", got, l.Addr())
	}
	d.Redial()
	if _, err := open.Write([]byte("x")); err == nil {
		t.Error("the connection is still open")
	}
	again, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.Write([]byte("x")); err != nil {
		t.Error(err)
	}
}
