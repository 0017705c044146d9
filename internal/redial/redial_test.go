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
