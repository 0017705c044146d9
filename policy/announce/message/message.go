// Package message is what the CNI plugin tells the agent of a pod, over a unix socket beside subnet.env: a line of JSON,
// which is answered by a line, "ok" or why not. The plugin is started for every pod, so that all of this is the standard
// library's.
package message

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// Version is what a Pod's field of this name has to be.
	Version = 1
	// MaxSize bounds a line, in bytes.
	MaxSize = 4096
	// OK is the answer when the policies of a pod are enforced.
	OK = "ok"

	// AddLimit is how long an ADD may wait for the agent, and DelLimit how long a DEL.
	AddLimit = 2 * time.Second
	DelLimit = 200 * time.Millisecond
)

// Pod is a pod that starts with some addresses, or that has them no longer.
type Pod struct {
	Version   int          `json:"version"`
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       string       `json:"uid,omitempty"` // as the runtime knows it
	Addresses []netip.Addr `json:"addresses"`
	Gone      bool         `json:"gone,omitempty"` // the addresses are given back
}

// Socket returns where the agent listens that writes a subnet.env.
func Socket(subnetFile string) string {
	return filepath.Join(filepath.Dir(subnetFile), "network-policy.sock")
}

// Send tells the agent of a pod, and waits for its answer until ctx is done. Without an agent that enforces policies, which
// has no socket, there is nothing to do.
func Send(ctx context.Context, socket string, p Pod) error {
	conn, err := connect(socket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("tell the agent of the pod: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	p.Version = Version
	line, err := json.Marshal(p)
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("tell the agent of the pod: %w", err)
	}
	answer, err := bufio.NewReader(io.LimitReader(conn, MaxSize)).ReadString('\n')
	switch answer = strings.TrimSpace(answer); {
	case ctx.Err() != nil:
		return errors.New("the agent does not answer")
	case err != nil:
		return fmt.Errorf("read the agent's answer: %w", err)
	case answer != OK:
		return fmt.Errorf("the agent answers: %s", answer)
	}
	return nil
}

// connect connects to a socket. Package net would do it too, with 340 kB of the plugin's file.
func connect(path string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	conn := os.NewFile(uintptr(fd), path)
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		return nil, errors.Join(&os.PathError{Op: "connect", Path: path, Err: err}, conn.Close())
	}
	return conn, nil
}
