// Package trust reports whether a file that the caller did not name is safe to run or to believe: whether only root
// or the caller could have put it there.
package trust

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// maxLinks bounds the symbolic links that a path follows, as the kernel does.
const maxLinks = 40

// File returns an error unless the file, each directory of its path and each symbolic link among these belong to
// root or the caller, and nobody else may write to them.
func File(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	links := 0
	return check(path, &links)
}

func check(path string, links *int) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to the user %d: want one of root or of the caller", path, stat.Uid)
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		if *links++; *links > maxLinks {
			return fmt.Errorf("%s: too many symbolic links", path)
		}
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		if err := check(target, links); err != nil {
			return err
		}
	case mode.Perm()&0o022 != 0 && (!mode.IsDir() || mode&fs.ModeSticky == 0): // of a sticky directory only owners take names away
		return fmt.Errorf("%s may be written by others than its owner: its mode is %v", path, mode)
	}
	if path == "/" {
		return nil
	}
	return check(filepath.Dir(path), links)
}
