package rootless

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A client connects, reads the greeting and sends its files with one byte. What follows is JSON: a request and signals
// from the client, and one reply.
type (
	request struct {
		Path, Dir string
		Args, Env []string
	}
	signalled struct{ Signal int }
	reply     struct {
		Exit  int
		Error string // why the command was not started
	}
)

// maxFiles are standard input, output and error, and one more.
const maxFiles = 4

// sendFiles passes open files to the other end.
func sendFiles(conn *net.UnixConn, files []*os.File) error {
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fds...), nil); err != nil {
		return fmt.Errorf("pass the terminal: %w", err)
	}
	return nil
}

// receiveFiles returns the files that the other end passes.
func receiveFiles(conn *net.UnixConn) ([]*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	_, used, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:used])
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	if len(files) < 3 {
		return files, errors.New("want standard input, output and error")
	}
	return files, nil
}
