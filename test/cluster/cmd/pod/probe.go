package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twill-net/twill/internal/echo"
)

// limit is how long one probe may take.
const limit = 10 * time.Second

// reply is what came of one target, one JSON line.
type reply struct {
	Target string
	Answer string `json:",omitempty"` // the server's text
	Error  string `json:",omitempty"`
}

// probeAll asks every target, tcp://HOST:PORT, udp://HOST:PORT, icmp://ADDRESS or dns://NAME, all at once, and
// prints a reply a line.
func probeAll(targets []string) error {
	replies := make([]reply, len(targets))
	var group sync.WaitGroup
	for i, target := range targets {
		group.Go(func() {
			answer, err := probe(target)
			replies[i] = reply{Target: target, Answer: strings.TrimSpace(answer)}
			if err != nil {
				replies[i].Error = err.Error()
			}
		})
	}
	group.Wait()
	out := json.NewEncoder(os.Stdout)
	for _, r := range replies {
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func probe(target string) (string, error) {
	kind, where, _ := strings.Cut(target, "://")
	switch kind {
	case "tcp", "udp":
		return ask(kind, where)
	case "icmp":
		lost, err := unanswered(where, 1, 0)
		if err == nil && lost > 0 {
			err = errors.New("no reply")
		}
		return "", err
	case "dns":
		addrs, err := net.LookupHost(where)
		return strings.Join(addrs, " "), err
	}
	return "", fmt.Errorf("target %q: want tcp://, udp://, icmp:// or dns://", target)
}

func ask(network, where string) (string, error) {
	c, err := net.DialTimeout(network, where, limit)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(limit))
	if network == "tcp" {
		data, err := io.ReadAll(c)
		return string(data), err
	}
	if _, err := c.Write([]byte("who\n")); err != nil {
		return "", err
	}
	buf := make([]byte, 2048)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// ping sends COUNT echo requests, 100 a second, and prints "sent lost".
func ping(args []string) error {
	if len(args) != 2 {
		return errors.New(usage)
	}
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("count %q: want a number", args[1])
	}
	lost, err := unanswered(args[0], count, 10*time.Millisecond)
	if err == nil {
		fmt.Println(count, lost)
	}
	return err
}

// unanswered sends count echo requests to address and returns how many had no reply within limit of the last one.
func unanswered(address string, count int, pause time.Duration) (lost int, err error) {
	to, err := netip.ParseAddr(address)
	if err != nil {
		return 0, err
	}
	s, err := echo.Open(to, echo.Options{})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	answered := make(chan int, 1)
	go func() { answered <- collect(s, count) }()
	tick := time.NewTicker(max(pause, 1))
	defer tick.Stop()
	for n := range count {
		_ = s.Send(to, uint64(n), 0) // what cannot be sent has no reply
		<-tick.C
	}
	_ = s.SetReadDeadline(time.Now().Add(limit))
	return count - <-answered, nil
}

// collect counts the requests that were answered, until all were or the deadline.
func collect(s *echo.Socket, count int) int {
	answered := map[uint64]bool{}
	for len(answered) < count {
		_, n, err := s.Receive()
		if err != nil {
			break
		}
		answered[n] = true
	}
	return len(answered)
}
