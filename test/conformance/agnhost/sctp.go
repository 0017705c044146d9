package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"
)

// The types of the chunks by which an association begins and ends (RFC 9260).
const (
	chunkInit       = 1
	chunkInitAck    = 2
	chunkAbort      = 6
	chunkCookieEcho = 10
	chunkCookieAck  = 11

	parameterCookie = 7
)

// packet is an SCTP packet with one chunk.
type packet struct {
	src, dst uint16
	tag      uint32
	chunk    byte
	body     []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p packet) encode() []byte {
	b := binary.BigEndian.AppendUint16(nil, p.src)
	b = binary.BigEndian.AppendUint16(b, p.dst)
	b = binary.BigEndian.AppendUint32(b, p.tag)
	b = append(b, 0, 0, 0, 0, p.chunk, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(p.body)))
	b = append(b, p.body...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

func decode(b []byte) (p packet, ok bool) {
	if len(b) < 16 {
		return p, false
	}
	p = packet{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[4:]), b[12], nil}
	length := int(binary.BigEndian.Uint16(b[14:]))
	if length < 4 || 12+length > len(b) {
		return p, false
	}
	p.body = b[16 : 12+length]
	return p, true
}

// initBody is that of INIT and INIT ACK, before parameters.
func initBody(tag uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, tag)
	b = binary.BigEndian.AppendUint32(b, 1<<16)    // window
	b = append(b, 0, 1, 0, 1)                      // streams
	return binary.BigEndian.AppendUint32(b, tag+1) // first sequence number
}

const initSize = 16

// connect opens an association and ends it. A packet that is lost is sent again.
func connect(to netip.AddrPort, timeout time.Duration) error {
	network := "ip4:132"
	if to.Addr().Is6() {
		network = "ip6:132"
	}
	c, err := net.DialIP(network, nil, &net.IPAddr{IP: to.Addr().AsSlice()})
	if err != nil {
		return fmt.Errorf("OTHER: %w", err)
	}
	defer c.Close()
	port, tag := uint16(32768+rand.IntN(28000)), rand.Uint32()|1
	deadline := time.Now().Add(timeout)
	ask := func(p packet, want byte) (packet, error) {
		p.src, p.dst = port, to.Port()
		buffer := make([]byte, 1500)
		for again := time.Now(); time.Now().Before(deadline); {
			if !again.After(time.Now()) {
				again = time.Now().Add(time.Second)
				if _, err := c.Write(p.encode()); err != nil {
					return p, fmt.Errorf("OTHER: %w", err)
				}
			}
			_ = c.SetReadDeadline(earlier(again, deadline))
			n, _, err := c.ReadFrom(buffer) // without the header, which Read leaves
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				return p, errors.New("REFUSED")
			}
			answer, ok := decode(buffer[:max(n, 0)])
			if ok && answer.src == p.dst && answer.dst == port && answer.tag == tag && answer.chunk == want {
				return answer, nil
			}
		}
		return p, errTimeout
	}
	ack, err := ask(packet{chunk: chunkInit, body: initBody(tag)}, chunkInitAck)
	if err != nil {
		return err
	}
	if len(ack.body) < initSize+4 {
		return errors.New("OTHER: an INIT ACK without a cookie")
	}
	theirs, cookie := binary.BigEndian.Uint32(ack.body), ack.body[initSize+4:]
	if _, err := ask(packet{tag: theirs, chunk: chunkCookieEcho, body: cookie}, chunkCookieAck); err != nil {
		return err
	}
	_, err = c.Write(packet{port, to.Port(), theirs, chunkAbort, nil}.encode())
	return err
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// serve answers at ports, in both families.
func serve(ports map[uint16]bool) error {
	failed := make(chan error)
	for _, network := range []string{"ip4:132", "ip6:132"} {
		c, err := net.ListenPacket(network, "")
		if err != nil {
			return fmt.Errorf("listen for SCTP: %w", err)
		}
		go func() { failed <- answerAll(c, ports) }()
	}
	return <-failed
}

func answerAll(c net.PacketConn, ports map[uint16]bool) error {
	buffer := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("read SCTP: %w", err)
		}
		if p, ok := decode(buffer[:n]); ok && ports[p.dst] {
			if answer, ok := p.answer(); ok {
				_, _ = c.WriteTo(answer.encode(), from) // or the client asks again
			}
		}
	}
}

// answer is that of a server, which remembers nothing: all that it has to know is in the cookie.
func (p packet) answer() (a packet, ok bool) {
	a = packet{src: p.dst, dst: p.src}
	switch {
	case p.chunk == chunkInit && len(p.body) >= initSize:
		a.tag, a.chunk = binary.BigEndian.Uint32(p.body), chunkInitAck
		a.body = initBody(rand.Uint32() | 1)
		a.body = append(a.body, 0, parameterCookie, 0, 8) // type and length
		a.body = binary.BigEndian.AppendUint32(a.body, a.tag)
		return a, true
	case p.chunk == chunkCookieEcho && len(p.body) >= 4:
		a.tag, a.chunk = binary.BigEndian.Uint32(p.body), chunkCookieAck
		return a, true
	}
	return a, false
}
