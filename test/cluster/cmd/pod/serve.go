package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// askPort is where a server answers by TCP and UDP: "host name, client's address".
const askPort = ":8080"

// serve answers until SIGTERM.
func serve() error {
	ended := make(chan error, 4)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() { <-signals; ended <- nil }()
	go func() { ended <- accept() }()
	go func() { ended <- serveUDP4() }()
	go func() { ended <- serveUDP6() }()
	return <-ended
}

func accept() error {
	l, err := net.Listen("tcp", askPort)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			answer(c)
		}()
	}
}

func answer(c net.Conn) { fmt.Fprint(c, text(c.RemoteAddr())) }

// text is what both protocols answer: this pod's name and the client's address as it is seen here.
func text(from net.Addr) string {
	name, _ := os.Hostname()
	host, _, _ := net.SplitHostPort(from.String())
	return name + " " + host + "\n"
}

// serveUDP4 answers from the address that was asked: a node has several, and a client takes no answer from another.
func serveUDP4() error {
	l, err := net.ListenPacket("udp4", askPort)
	if err != nil {
		return err
	}
	c := ipv4.NewPacketConn(l)
	if err := c.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return err
	}
	var buf [2048]byte
	for {
		_, asked, from, err := c.ReadFrom(buf[:])
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err == nil { // not the news of a port that an earlier answer found closed
			_, _ = c.WriteTo([]byte(text(from)), &ipv4.ControlMessage{Src: asked.Dst}, from)
		}
	}
}

func serveUDP6() error {
	l, err := net.ListenPacket("udp6", askPort)
	if err != nil {
		return err
	}
	c := ipv6.NewPacketConn(l)
	if err := c.SetControlMessage(ipv6.FlagDst, true); err != nil {
		return err
	}
	var buf [2048]byte
	for {
		_, asked, from, err := c.ReadFrom(buf[:])
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err == nil {
			_, _ = c.WriteTo([]byte(text(from)), &ipv6.ControlMessage{Src: asked.Dst}, from)
		}
	}
}
