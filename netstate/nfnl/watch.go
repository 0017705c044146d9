package nfnl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/loop"
)

// Subscribe returns a socket that hears of every change of nf_tables, and has room for so many bytes of them.
func Subscribe(room int) (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err == nil {
		_ = conn.SetReadBuffer(room) // a service proxy rewrites thousands of rules at once; ENOBUFS is an event too
		if err = conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
			conn.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("subscribe to nf_tables changes: %w", err)
	}
	return conn, nil
}

// Listen turns the notifications that matter into events until the subscription breaks or ctx is done. It closes conn.
func Listen(ctx context.Context, conn *netlink.Conn, matters func(netlink.Message) bool, events chan<- struct{}) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer func() {
		if stop() {
			conn.Close()
		}
	}()
	for {
		messages, err := conn.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS) || slices.ContainsFunc(messages, matters):
			loop.Notify(events)
		case err != nil:
			return
		}
	}
}
