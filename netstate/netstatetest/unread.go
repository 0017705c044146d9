package netstatetest

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// Quiet waits until no hint comes any more and what netlink has told this process is read, and reports whether any came.
func Quiet(t testing.TB, hints <-chan struct{}, silence time.Duration) (came bool) {
	t.Helper()
	for {
		select {
		case _, ok := <-hints:
			if !ok {
				t.Fatal("the channel was closed")
			}
			came = true
			continue
		case <-time.After(silence):
		}
		unread, err := unread()
		if err != nil {
			t.Fatal(err)
		}
		if !unread && len(hints) == 0 {
			return came
		}
	}
}

// unread reports whether messages wait in a netlink socket that this process has in the thread's namespace.
func unread() (bool, error) {
	own, err := sockets()
	if err != nil {
		return false, err
	}
	f, err := os.Open("/proc/thread-self/net/netlink")
	if err != nil {
		return false, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
		fields := strings.Fields(lines.Text())
		if len(fields) >= 10 && own[fields[9]] && fields[4] != "0" {
			return true, nil
		}
	}
	return false, nil
}

// sockets returns the inodes of this process's sockets.
func sockets() (map[string]bool, error) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	inodes := map[string]bool{}
	for _, f := range files {
		link, _ := os.Readlink("/proc/self/fd/" + f.Name()) // a file may be closed meanwhile
		var inode string
		if n, _ := fmt.Sscanf(link, "socket:[%s", &inode); n == 1 {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return inodes, nil
}
