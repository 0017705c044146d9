package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
)

// TestAliveWhileTheStoreIsAway: without a checkpoint and without the API server there is nothing to
// work with, and the agent is alive all the same, not ready, and says why.
func TestAliveWhileTheStoreIsAway(t *testing.T) {
	loopback(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "net-conf.json"), []byte(`{"Network": "10.244.0.0/16"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	o, err := parseFlags([]string{"--kube-subnet-mgr", "--kube-api-url=http://127.0.0.1:9", "--node-name=node1", "--healthz-ip=127.0.0.1",
		fmt.Sprintf("--healthz-port=%d", port), "--net-config-path=" + filepath.Join(dir, "net-conf.json"),
		"--subnet-file=" + filepath.Join(dir, "subnet.env"), "--checkpoint-file=" + filepath.Join(dir, "checkpoint.json")}, noEnv, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	answers := map[string]string{}
	done := make(chan error, 1)
	go func() { done <- serve(ctx, o, slog.New(slog.DiscardHandler)) }()
	for _, path := range []string{"/healthz", "/readyz"} {
		testwait.Until(t, "there is an answer", func() bool {
			answers[path] = get(t, fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
			return answers[path] != ""
		})
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !strings.HasPrefix(answers["/healthz"], "200 twilld starts") || !strings.HasPrefix(answers["/readyz"], "503 twilld starts") {
		t.Errorf("answers %q", answers)
	}
}

// get is the status and the body, empty while nobody listens.
func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return ""
	}
	return fmt.Sprint(answer.StatusCode, " ", string(body))
}
