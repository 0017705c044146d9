package browser

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/target"
	"github.com/twill-net/twill/ui"
)

// serve serves a source, and returns the address to open.
func serve(t *testing.T, s target.Source) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	address, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- ui.New(s, nil).Serve(ctx, l, func(a string) { address <- a }) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return <-address
}

// saved writes the page as one file, and returns its address.
func saved(t *testing.T, s ui.Saved) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "twill.html")
	var b strings.Builder
	if err := s.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return "file://" + path
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
