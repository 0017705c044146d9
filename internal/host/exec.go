package host

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// Exec runs a command in the namespace and returns what it printed to stdout; an error has what it printed to
// stderr.
func (h Host) Exec(ctx context.Context, command ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	if err := h.Attach(ctx, nil, &stdout, &stderr, command...); err != nil {
		return stdout.String(), fmt.Errorf("%s in %s: %w: %s", strings.Join(command, " "), h.Name, err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// LoadRules loads nftables rules, which only scripts and unusual sites need: a plain lab does without the program.
func (h Host) LoadRules(ctx context.Context, rules string) error {
	var stderr bytes.Buffer
	if err := h.Attach(ctx, strings.NewReader(rules), io.Discard, &stderr, "nft", "-f", "-"); err != nil {
		return fmt.Errorf("load rules into %s with nft: %w: %s", h.Name, err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// Attach runs a command in the namespace with the given streams. The error is *exec.ExitError when the command
// ran and said no.
func (h Host) Attach(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, command ...string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	if err := h.Do(cmd.Start); err != nil {
		return err
	}
	return cmd.Wait()
}
