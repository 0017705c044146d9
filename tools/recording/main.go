// Command recording runs a session of twillctl in a lab, and draws what it really prints as an SVG whose lines light up
// one after another: recording TWILLCTL SESSION SVG. It needs root, for the lab.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// labName is not that of a user's lab, which may be in use.
const labName = "recording"

// pause is the time in which Twill repairs what a command broke, before the next one.
const pause = time.Second

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: recording TWILLCTL SESSION SVG")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, twillctl, file, picture string) (err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	steps, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := removeLab(ctx, twillctl); err != nil { // what a crashed run left
		return err
	}
	defer func() { err = errors.Join(err, removeLab(context.WithoutCancel(ctx), twillctl)) }()
	lines, err := record(ctx, twillctl, steps, pause)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	draw(&b, lines)
	return os.WriteFile(picture, b.Bytes(), 0o644)
}

func removeLab(ctx context.Context, twillctl string) error {
	out, err := exec.CommandContext(ctx, twillctl, "lab", "--name", labName, "down").CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove the lab: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
