package fastpath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// refusalLink is in the folder of the pins while programs cannot be loaded. Where it leads to is the reason, as text: a
// BPF file system has no files but pins.
const refusalLink = "refusal"

// Load loads and pins what an agent with fewer capabilities can then open. If the kernel refuses it, the agent's own Open
// says why.
func Load(dir string) error {
	p, err := Open(dir)
	if err == nil {
		p.Close()
	}
	path, folderErr := folder(dir)
	if folderErr != nil {
		return err // Open fails for an agent, too, and for the same reason
	}
	link := filepath.Join(path, refusalLink)
	_ = os.Remove(link) // of an earlier try
	if err == nil {
		return nil
	}
	text := strings.TrimPrefix(err.Error(), ErrUnavailable.Error()+": ")
	text = text[:min(len(text), unix.PathMax-1)]
	if noteErr := errors.Join(os.MkdirAll(path, 0o700), os.Symlink(text, link)); noteErr != nil {
		return fmt.Errorf("%w (and the agent cannot be told: %w)", err, noteErr)
	}
	return err
}

// refused returns the error for an agent that may not load programs: what Load was told, if there was one.
func refused(err error, folder string) error {
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	text, linkErr := os.Readlink(filepath.Join(folder, refusalLink))
	if linkErr != nil {
		return err
	}
	return fmt.Errorf("%w: %s", ErrUnavailable, text)
}
