package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// legacyPoll is how often legacy tables are looked at, because ip_tables tells nobody of its changes.
const legacyPoll = 500 * time.Millisecond

// Watch gives a hint whenever rules that concern our chains may have changed: by notification for nf_tables, by
// looking at the tables every half second for legacy iptables. The channel is closed when ctx is done or the
// subscription broke; then watch again and observe everything.
func (f *Firewall) Watch(ctx context.Context) (<-chan struct{}, error) {
	hints := make(chan struct{}, 1)
	conn, err := subscribe()
	if err != nil && !noNFTables(err) && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("subscribe to nf_tables changes: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	poller := make(chan struct{})
	go func() {
		defer close(poller)
		pollLegacy(ctx, hints)
	}()
	go func() {
		defer close(hints)
		if err == nil {
			listen(ctx, conn, hints)
		} else {
			<-ctx.Done()
		}
		cancel()
		<-poller // it still sends
	}()
	return hints, nil
}

func subscribe() (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	_ = conn.SetReadBuffer(1 << 20) // a service proxy rewrites thousands of rules at once; ENOBUFS is a hint too
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// listen turns notifications into hints until the subscription breaks or ctx is done. It closes conn.
func listen(ctx context.Context, conn *netlink.Conn, hints chan<- struct{}) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer func() {
		if stop() {
			conn.Close()
		}
	}()
	for {
		messages, err := conn.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS) || slices.ContainsFunc(messages, concernsUs):
			hint(hints)
		case err != nil:
			return
		}
	}
}

// hint leaves one hint behind, however many there were.
func hint(hints chan<- struct{}) {
	select {
	case hints <- struct{}{}:
	default:
	}
}

// concernsUs says whether a notification is about a table, chain or rule that Observe looks at.
func concernsUs(m netlink.Message) bool {
	if len(m.Data) < 4 || uint16(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return false
	}
	attrs, err := attributes(m.Data[4:])
	if err != nil {
		return true
	}
	table, chain := "", ""
	switch uint16(m.Header.Type) & 0xff { // the table's name is attribute 1 in all of them
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chain = cstring(attrs[unix.NFTA_RULE_CHAIN])
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chain = cstring(attrs[unix.NFTA_CHAIN_NAME])
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
	default:
		return false
	}
	table = cstring(attrs[unix.NFTA_RULE_TABLE])
	for _, role := range roles {
		s := siteOf(role)
		if table == s.table && (chain == "" || chain == s.base || chain == s.chain) {
			return true
		}
	}
	return table == nativeTable(netstate.IPv4).Name || table == nativeTable(netstate.IPv6).Name
}

// pollLegacy gives a hint when a legacy table that we could have a chain in is another than the last time.
func pollLegacy(ctx context.Context, hints chan<- struct{}) {
	tick := time.NewTicker(legacyPoll)
	defer tick.Stop()
	last := legacyState()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := legacyState(); now != last {
			last = now
			hint(hints)
		}
	}
}

// legacyState is all that pollLegacy compares. A table that cannot be read counts as empty: the next round
// tells.
func legacyState() (state [len(netstate.Families) * len(roles)][32]byte) {
	i := 0
	for _, family := range netstate.Families {
		for _, role := range roles {
			state[i], _, _ = fingerprintLegacy(place{legacy, family, role})
			i++
		}
	}
	return state
}
