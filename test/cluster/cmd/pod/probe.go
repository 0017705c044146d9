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

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
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
		lost, err := echo(where, 1, 0)
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
	lost, err := echo(args[0], count, 10*time.Millisecond)
	if err == nil {
		fmt.Println(count, lost)
	}
	return err
}

// echo sends count echo requests to address and returns how many had no reply within limit of the last one.
func echo(address string, count int, pause time.Duration) (lost int, err error) {
	to, err := netip.ParseAddr(address)
	if err != nil {
		return 0, err
	}
	network, any, kind, proto := "ip4:icmp", "0.0.0.0", icmp.Type(ipv4.ICMPTypeEcho), 1
	if to.Is6() {
		network, any, kind, proto = "ip6:ipv6-icmp", "::", ipv6.ICMPTypeEchoRequest, 58
	}
	c, err := icmp.ListenPacket(network, any)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	id := os.Getpid() & 0xffff
	seen := make(chan int, 1)
	go func() { seen <- collect(c, proto, id, count) }()
	tick := time.NewTicker(max(pause, 1))
	defer tick.Stop()
	for n := range count {
		m := icmp.Message{Type: kind, Body: &icmp.Echo{ID: id, Seq: n & 0xffff, Data: fmt.Appendf(nil, "%08d", n)}}
		b, err := m.Marshal(nil)
		if err != nil {
			return 0, err
		}
		_, _ = c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}) // what cannot be sent has no reply
		<-tick.C
	}
	_ = c.SetReadDeadline(time.Now().Add(limit))
	return count - <-seen, nil
}

// collect counts the requests that were answered, until all were or the deadline.
func collect(c *icmp.PacketConn, proto, id, count int) int {
	answered := map[string]bool{}
	buf := make([]byte, 2048)
	for len(answered) < count {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			break
		}
		m, err := icmp.ParseMessage(proto, buf[:n])
		if err != nil || (m.Type != ipv4.ICMPTypeEchoReply && m.Type != ipv6.ICMPTypeEchoReply) {
			continue
		}
		if e, ok := m.Body.(*icmp.Echo); ok && e.ID == id {
			answered[string(e.Data)] = true
		}
	}
	return len(answered)
}
