package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/watch"
)

// DNS is a question to a DNS server; it is only asked by Ask.
const DNS Kind = "DNS"

// Ask sends one packet of a kind from a place to something that nobody of ours answers for: a node, a Service, a DNS
// server. A connection that is refused is an answer too.
func Ask(ctx context.Context, from watch.Place, k Kind, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	switch k {
	case ICMP:
		return ask(ctx, Try{From: from, Dst: to.Addr(), Kind: ICMP}, newMark())
	case TCP:
		return knock(ctx, from, to)
	case DNS:
		return resolve(ctx, from, to)
	}
	return fmt.Errorf("%s cannot be asked of %s", k, to)
}

// httpsPort is one to which firewalls often let connections pass.
const httpsPort = 443

// knock opens a connection. That it is refused is an answer, too.
func knock(ctx context.Context, from watch.Place, to netip.AddrPort) error {
	conn, err := dial(ctx, from, "tcp", to)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil
	case err != nil:
		return fmt.Errorf("connect: %w", orNoAnswer(err))
	}
	return conn.Close()
}

func dial(ctx context.Context, from watch.Place, network string, to netip.AddrPort) (conn net.Conn, err error) {
	err = from.Do(func() (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, to.String())
		return err
	})
	return conn, err
}

// apiName is a name that every cluster's DNS knows; that there is no such name is an answer too.
var apiName = dnsmessage.MustNewName("kubernetes.default.svc.cluster.local.")

// Question is a packet that asks a DNS server for the API's address.
func Question() ([]byte, error) {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 1, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: apiName, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	return m.Pack()
}

func resolve(ctx context.Context, from watch.Place, server netip.AddrPort) error {
	question, err := Question()
	if err != nil {
		return err
	}
	conn, err := dial(ctx, from, "udp", server)
	if err != nil {
		return fmt.Errorf("connect: %w", cause(err))
	}
	defer conn.Close()
	setDeadline(ctx, conn)
	if _, err := conn.Write(question); err != nil {
		return fmt.Errorf("send: %w", cause(err))
	}
	if _, err := conn.Read(make([]byte, 1<<12)); err != nil {
		return orNoAnswer(err)
	}
	return nil
}
