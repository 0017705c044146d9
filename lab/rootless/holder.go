package rootless

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

// holder is the first process of the pid namespace: all others end with it, and it reaps those whose parents have ended.
type holder struct {
	paths
	listener *net.UnixListener

	mu       sync.Mutex
	clients  int
	commands map[int]*command // by pid, until they are reaped
}

// command is what runs for a client.
type command struct {
	pid   int
	ended chan syscall.WaitStatus
}

// idleCheck is how often the holder asks itself whether it is needed: the labs' directory also goes when the user logs out.
const idleCheck = 10 * time.Second

// Hold is the holder, until the user has no lab.
func Hold() error {
	status := os.NewFile(statusFile, "status")
	h := &holder{paths: places(os.Getenv("XDG_RUNTIME_DIR")), commands: map[int]*command{}}
	if err := mount(h.base); err != nil {
		_, writeErr := fmt.Fprint(status, err)
		return errors.Join(err, writeErr)
	}
	l, err := net.FileListener(os.NewFile(socketFile, "socket"))
	if err != nil {
		return err
	}
	h.listener = l.(*net.UnixListener)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			h.reap()
		}
	}()
	go func() {
		for range time.Tick(idleCheck) {
			h.endIfIdle()
		}
	}()
	if err := status.Close(); err != nil {
		return err
	}
	for {
		conn, err := h.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		h.count(1)
		go func() {
			defer conn.Close()
			h.serve(conn)
			h.count(-1)
			h.endIfIdle()
		}()
	}
}

func (h *holder) count(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients += n
}

// endIfIdle ends the holder when nobody uses it and there is no lab. Who connects holds the lock until the holder has
// counted it.
func (h *holder) endIfIdle() {
	unlock, err := lock(h.base, syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // the client that connects comes here in its turn
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	entries, _ := os.ReadDir(h.labs)
	if h.clients > 0 || slices.ContainsFunc(entries, fs.DirEntry.IsDir) {
		unlock.Close()
		return
	}
	_ = os.RemoveAll(h.labs) // locks of labs that a command left when it was killed
	h.remove()
	h.listener.Close() // the lock goes with the process
}

// serve runs the command of one client, and answers how it ended.
func (h *holder) serve(conn *net.UnixConn) {
	var answer reply
	from := json.NewDecoder(conn)
	c, err := h.receive(conn, from)
	if err != nil {
		answer.Error = err.Error()
	} else {
		go h.forward(from, c)
		answer.Exit = exitCode(<-c.ended)
	}
	_ = json.NewEncoder(conn).Encode(answer) // a client that is gone asks no more
}

// receive starts the command that a client asks for.
func (h *holder) receive(conn *net.UnixConn, from *json.Decoder) (*command, error) {
	if _, err := conn.Write([]byte{0}); err != nil {
		return nil, err
	}
	files, err := receiveFiles(conn)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	var r request
	if err := from.Decode(&r); err != nil {
		return nil, err
	}
	return h.start(r, files)
}

// start starts a command in a session of its own: what a terminal sends to its client, the client passes on.
func (h *holder) start(r request, files []*os.File) (*command, error) {
	h.mu.Lock() // no process is reaped before it is known
	defer h.mu.Unlock()
	p, err := os.StartProcess(r.Path, r.Args, &os.ProcAttr{
		Dir: r.Dir, Env: r.Env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	c := &command{p.Pid, make(chan syscall.WaitStatus, 1)}
	h.commands[c.pid] = c
	return c, p.Release()
}

// forward passes a client's signals on. A client that is gone wants its command to end.
func (h *holder) forward(from *json.Decoder, c *command) {
	for {
		var s signalled
		err := from.Decode(&s)
		if err != nil {
			s.Signal = int(syscall.SIGTERM)
		}
		h.mu.Lock()
		if h.commands[c.pid] == c {
			_ = syscall.Kill(c.pid, syscall.Signal(s.Signal))
		}
		h.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// reap takes all processes that have ended: commands, and those of a lab that commands left.
func (h *holder) reap() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if c, ok := h.commands[pid]; ok {
			delete(h.commands, pid)
			c.ended <- status
		}
	}
}

// exitCode is that of a shell for a process that a signal ended.
func exitCode(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}
