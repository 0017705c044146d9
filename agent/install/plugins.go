package install

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/atomicfile"
	"github.com/twill-net/twill/internal/smallfile"
)

// Plugins are the CNI plugins of the image and the directory from which a runtime starts them.
type Plugins struct {
	From, To string
	Replace  bool // also plugins of these names that somebody else installed
}

// ours is the plugin that only Twill installs.
const ours = "twill"

// installedFile, in the directory To, has a line for every program that Twill installed, in the
// format of sha256sum(1). Twill may replace a program that has that sum, whatever image it came
// from.
const installedFile = ".twill-installed"

// Done is the result of an installation: the paths that it wrote, and those of other people's
// plugins that it left alone.
type Done struct{ Written, Left []string }

// Install copies the programs that are missing or damaged, or that Twill itself installed from
// another image. The others (portmap, bandwidth, loopback) may come from a distribution or another
// network, and may be newer: they are left alone. Each program appears in one step: a runtime may
// start it at any moment, and a program that runs cannot be written.
func (p Plugins) Install() (done Done, err error) {
	entries, err := os.ReadDir(p.From)
	if err != nil {
		return done, fmt.Errorf("find the CNI plugins: %w", err)
	}
	if err := os.MkdirAll(p.To, 0o755); err != nil {
		return done, fmt.Errorf("make the directory of the CNI plugins: %w", err)
	}
	if err := writable(p.To); err != nil {
		return done, fmt.Errorf("install the CNI plugins: %w", err)
	}
	sums := readSums(filepath.Join(p.To, installedFile))
	before := maps.Clone(sums)
	errs := []error{atomicfile.Sweep(p.To)}
	for _, e := range entries {
		if err := p.program(e.Name(), sums, &done); err != nil {
			errs = append(errs, fmt.Errorf("install the CNI plugin %s: %w", e.Name(), err))
		}
	}
	if !maps.Equal(before, sums) {
		errs = append(errs, writeSums(filepath.Join(p.To, installedFile), sums))
	}
	return done, errors.Join(errs...)
}

// mostProgram bounds what is read of a program, in bytes: the largest CNI plugins have some 10 MB.
const mostProgram = 256 * smallfile.MB

// program installs one of them, if necessary, and notes its sum.
func (p Plugins) program(name string, sums map[string]string, done *Done) error {
	want, err := smallfile.Read(filepath.Join(p.From, name), mostProgram)
	if err != nil {
		return err
	}
	to := filepath.Join(p.To, name)
	have, err := readProgram(to)
	switch {
	case err == nil && bytes.Equal(have, want):
		if sums[name] == "" { // an earlier version installed it, which kept no sums
			sums[name] = sum(want)
		}
		return nil
	case err == nil && name != ours && !p.Replace && sum(have) != sums[name],
		name != ours && !p.Replace && isLink(to):
		done.Left = append(done.Left, to)
		return nil
	}
	if err := atomicfile.Write(to, want, 0o755); err != nil {
		return err
	}
	sums[name] = sum(want)
	done.Written = append(done.Written, to)
	return nil
}

// isLink reports whether path is a symbolic link. Its target may exist on the node but not in a container.
func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// readProgram returns the program at path. It returns an error if it cannot be started: it is not
// executable, is empty or cut short, or is neither a binary nor a script.
func readProgram(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o100 == 0 {
		return nil, fmt.Errorf("%s has the mode %s: want a regular file that its owner may execute", path, info.Mode())
	}
	data, err := smallfile.Read(path, mostProgram)
	if err != nil || bytes.HasPrefix(data, []byte("#!")) {
		return data, err
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s is no program: %w", path, err)
	}
	for _, segment := range f.Progs {
		if segment.Off+segment.Filesz > uint64(len(data)) {
			return nil, fmt.Errorf("%s is cut short at %d bytes", path, len(data))
		}
	}
	return data, nil
}

// readSums reads the file that writeSums wrote. Without it, no program is Twill's.
func readSums(path string) map[string]string {
	sums := map[string]string{}
	data, err := smallfile.ReadUnlinked(path, smallfile.MB)
	if err != nil {
		return sums
	}
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		if sum, name, ok := strings.Cut(s.Text(), "  "); ok {
			sums[name] = sum
		}
	}
	return sums
}

func writeSums(path string, sums map[string]string) error {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(&b, "%s  %s\n", sums[name], name)
	}
	return atomicfile.Write(path, b.Bytes(), 0o644)
}

// writable returns an error that says what to do if this process may not create files in dir.
func writable(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); !errors.Is(err, unix.EACCES) {
		return nil // what is done there returns any other error
	}
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return fmt.Errorf("%s belongs to user %d and has the mode %#o, so user %d may not write there: "+
		"give the container the capability DAC_OVERRIDE, or the directory to that user (chown %d %s)",
		dir, stat.Uid, stat.Mode&0o7777, os.Getuid(), os.Getuid(), dir)
}
