package main

import (
	"context"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// browser is the user's, to which an address is handed over in a file: every user of the machine reads the command lines
// of all processes, and browsers keep what they open in theirs.
type browser struct{ dir string }

// handover is how long a browser may take to read the file. It has a token that is void when the program ends.
const handover = 2 * time.Minute

// redirect is the page that leads to the address.
const redirect = `<!doctype html><meta charset="utf-8"><title>Twill</title><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url=%[1]s"><a href="%[1]s">The page of twillctl ui</a>
`

// open opens an address. It is no error that there is no browser: the address was printed. Root's own browser is not
// started, and would not start.
func (b *browser) open(ctx context.Context, address string) {
	if os.Geteuid() == 0 || os.Getenv("DISPLAY")+os.Getenv("WAYLAND_DISPLAY") == "" {
		return
	}
	path, err := b.write(address)
	if err != nil {
		return
	}
	c := exec.CommandContext(ctx, "xdg-open", path)
	if c.Start() != nil {
		b.forget()
		return
	}
	time.AfterFunc(handover, b.forget)
	go func() { _ = c.Wait() }() // it says itself what went wrong
}

// write writes the page where nobody else may read, in the user's home: browsers in a sandbox do not see /tmp, nor files
// with a dot.
func (b *browser) write(address string) (path string, err error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	if b.dir, err = os.MkdirTemp(home, "twill-ui-"); err != nil {
		return "", err
	}
	path = filepath.Join(b.dir, "twill.html")
	return path, os.WriteFile(path, fmt.Appendf(nil, redirect, html.EscapeString(address)), 0o600)
}

// forget removes what open wrote.
func (b *browser) forget() {
	if b.dir != "" {
		os.RemoveAll(b.dir)
	}
}
