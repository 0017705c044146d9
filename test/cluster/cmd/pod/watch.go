package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

const (
	watchPause = time.Millisecond     // between two questions
	patience   = 3 * time.Millisecond // for an answer
	enough     = 5                    // questions in a row that must end in the other way before something has changed
)

// watch asks HOST:PORT by UDP, a thousand times a second until SIGTERM, each time from another port: some engines of
// policies never end a connection. It prints "open" or "shut" and the time in nanoseconds of the question since which
// that is so.
func watch(args []string) error {
	if len(args) != 1 {
		return errors.New(usage)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	var open bool     // as printed
	var first []int64 // questions in a row that ended in the other way
	words := map[bool]string{true: "open", false: "shut"}
	for {
		select {
		case <-signals:
			return nil
		case <-time.After(watchPause):
		}
		asked := time.Now()
		if answered(args[0]) == open {
			first = nil
		} else if first = append(first, asked.UnixNano()); len(first) == enough {
			open = !open
			fmt.Println(words[open], first[0])
			first = nil
		}
	}
}

// answered reports whether a question was answered in time.
func answered(addr string) bool {
	c, err := net.Dial("udp", addr)
	if err != nil {
		return false
	}
	defer c.Close()
	if _, err := c.Write([]byte("who\n")); err != nil {
		return false
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_, err = c.Read(make([]byte, 256))
	return err == nil
}

// connects connects to HOST:PORT, again and again for so many seconds, and prints how often.
func connects(args []string) error {
	if len(args) != 2 {
		return errors.New(usage)
	}
	seconds, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("seconds %q: want a number", args[1])
	}
	count := 0
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); count++ {
		c, err := net.DialTimeout("tcp", args[0], limit)
		if err != nil {
			return err
		}
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // its port is free at once
		}
		c.Close()
	}
	fmt.Println(count)
	return nil
}
