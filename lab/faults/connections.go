package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv4"
)

// connectionFaults fill what the kernel remembers of connections.
var connectionFaults = []Fault{
	{
		Name:        "conntrack-full",
		Finding:     "conntrack-full",
		Description: "the connection table is nearly full, as under a port scan",
		IPv4:        true,
		KeepAgent:   true,
		Inject:      fillConnections,
		Undo:        forgetConnections,
	},
}

// fillConnections sends datagrams to as many addresses of the node's own loopback as the connection table has room for.
// Nobody answers, so the kernel forgets them after 30 s.
func fillConnections(_ context.Context, v *Target) error {
	return v.Node.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
		if err != nil {
			return fmt.Errorf("read the size of the connection table: %w", err)
		}
		size, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return fmt.Errorf("read the size of the connection table: %w", err)
		}
		c, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer c.Close()
		return scan(ipv4.NewPacketConn(c), size*97/100)
	})
}

// scan sends a datagram to each of so many addresses.
func scan(c *ipv4.PacketConn, addresses int) error {
	batch := make([]ipv4.Message, 0, 256)
	for i := range addresses {
		to := &net.UDPAddr{IP: net.IPv4(127, byte(1+i>>16), byte(i>>8), byte(i)), Port: 9}
		batch = append(batch, ipv4.Message{Buffers: [][]byte{{0}}, Addr: to})
		for len(batch) == cap(batch) || i == addresses-1 && len(batch) > 0 {
			n, err := c.WriteBatch(batch, 0)
			if err != nil && !errors.Is(err, syscall.ECONNREFUSED) &&
				!errors.Is(err, syscall.EPERM) { // news of an earlier one
				return fmt.Errorf("fill the connection table: %w", err)
			}
			batch = batch[:copy(batch, batch[max(n, 0):])]
		}
	}
	return nil
}

func forgetConnections(_ context.Context, v *Target) error {
	return v.Node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}
