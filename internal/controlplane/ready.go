package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// waitReady polls /readyz, which tells each of its checks: RBAC's default roles are among them.
func (s *APIServer) waitReady(ctx context.Context, progress func(string)) error {
	said := ""
	return s.proc.await(ctx, func(ctx context.Context) error {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		if now := describe(err); now != said {
			said = now
			progress("waiting for kube-apiserver: " + now)
		}
		return errors.New(said)
	})
}

// ready also asks for the namespace default: it is made by a hook that readyz does not wait for, and events of
// nodes go there.
func (s *APIServer) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := s.do(ctx, request{path: "/readyz?verbose"}); err != nil {
		return err
	}
	_, err := s.do(ctx, request{path: "/api/v1/namespaces/default"})
	return err
}

// describe shortens readyz' answer of some forty lines to what is missing.
func describe(err error) string {
	var missing []string
	for line := range strings.Lines(err.Error()) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			missing = append(missing, strings.Fields(name)[0])
		}
	}
	switch {
	case len(missing) == 1:
		return missing[0]
	case len(missing) > 1:
		return fmt.Sprintf("%s and %d more checks", missing[0], len(missing)-1)
	case strings.Contains(err.Error(), "connection refused"):
		return "it does not listen yet"
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return first
}
