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
	"syscall"
)

// Run runs this program again in the holder's namespaces, with these arguments, and returns its exit code. It starts the
// holder if there is none. The files follow standard input, output and error: the first is number 3. Signals go to the
// command.
func Run(args []string, files ...*os.File) (int, error) {
	p := places(base())
	if err := p.check(); err != nil {
		return 0, err
	}
	conn, err := p.connect()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := sendFiles(conn, slices.Concat([]*os.File{os.Stdin, os.Stdout, os.Stderr}, files)); err != nil {
		return 0, err
	}
	to := json.NewEncoder(conn)
	if err := ask(to, p, args); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	go func() {
		for s := range signals {
			_ = to.Encode(signalled{int(s.(syscall.Signal))}) // if it has ended, Decode says so
		}
	}()
	var r reply
	if err := json.NewDecoder(conn).Decode(&r); err != nil {
		return 0, fmt.Errorf("the process that holds your labs has ended: %w", err)
	}
	if r.Error != "" {
		return 0, errors.New(r.Error)
	}
	return r.Exit, nil
}

func ask(to *json.Encoder, p paths, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	env := append([]string{variable + "=" + p.labs}, os.Environ()...) // of two values the first counts
	return to.Encode(request{Path: self, Dir: dir, Args: append([]string{os.Args[0]}, args...), Env: env})
}

// connect returns a connection to the holder that the holder knows of: from then on it does not end.
func (p paths) connect() (*net.UnixConn, error) {
	unlock, err := lock(p.base, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer unlock.Close()
	conn, err := p.dial()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		if err := p.start(); err != nil {
			return nil, err
		}
		conn, err = p.dial()
	}
	if err != nil {
		return nil, fmt.Errorf("ask the process that holds your labs: %w", err)
	}
	return conn, nil
}

func (p paths) dial() (*net.UnixConn, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: p.socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
