// Package smallfile reads files that somebody may have replaced by something else. It reads regular files only, never
// waits for one (as an open of a named pipe does), and reads no more than a limit, so that a device or a file of a
// terabyte is an error at once.
package smallfile

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// MB is 2^20 bytes, of which limits are made.
const MB = 1 << 20

// Read returns what the file at path holds, which is at most limit bytes. It follows links. An error names the path, and
// is fs.ErrNotExist if there is no file.
func Read(path string, limit int64) ([]byte, error) { return read(path, limit, 0) }

// ReadUnlinked is Read of a path at which nobody may put a link: one there is an error.
func ReadUnlinked(path string, limit int64) ([]byte, error) {
	return read(path, limit, syscall.O_NOFOLLOW)
}

// read does without package os, which registers each file with the poller: the CNI plugin starts for every pod.
func read(path string, limit int64, flags int) ([]byte, error) {
	fd, err := open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC|flags)
	if errors.Is(err, syscall.ELOOP) && flags != 0 {
		err = errors.New("it is a link: want a regular file")
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	data, err := readAll(fd, limit)
	if err = errors.Join(err, syscall.Close(fd)); err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return data, nil
}

func open(path string, flags int) (fd int, err error) {
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		fd, err = syscall.Open(path, flags, 0)
	}
	return fd, err
}

// readAll reads a regular file. The kernel's own files say that they are empty.
func readAll(fd int, limit int64) ([]byte, error) {
	var stat syscall.Stat_t
	switch err := syscall.Fstat(fd, &stat); {
	case err != nil:
		return nil, err
	case stat.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return nil, fmt.Errorf("it is %s: want a regular file", kind(stat.Mode))
	case stat.Size > limit:
		return nil, fmt.Errorf("it has %d bytes: want at most %d", stat.Size, limit)
	}
	data := make([]byte, 0, stat.Size+512)
	for {
		n, err := syscall.Read(fd, data[len(data):cap(data)])
		data = data[:len(data)+max(n, 0)]
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return nil, err
		case int64(len(data)) > limit:
			return nil, fmt.Errorf("it has more than %d bytes, which is the most", limit)
		case n == 0:
			return data, nil
		case len(data) == cap(data):
			data = append(data, 0)[:len(data)]
		}
	}
}

// kind says what a file is that is not regular.
func kind(mode uint32) string {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		return "a directory"
	case syscall.S_IFIFO:
		return "a named pipe"
	case syscall.S_IFSOCK:
		return "a socket"
	}
	return "a device"
}
