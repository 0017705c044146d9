package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Watch sends an event whenever rules that concern our chains may have changed. nf_tables notifies of changes; legacy
// tables are looked at every five seconds. The channel is closed when ctx is done or the subscription broke; then watch again
// and observe everything.
func (f *Firewall) Watch(ctx context.Context) (<-chan struct{}, error) {
	events := make(chan struct{}, 1)
	conn, err := subscribe()
	if err != nil && !noNFTables(err) && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("subscribe to nf_tables changes: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	poll := f.legacyPoll()
	tick := time.NewTicker(f.legacyInterval)
	var senders sync.WaitGroup
	senders.Go(func() {
		defer cancel()
		if err == nil {
			listen(ctx, conn, events)
		} else {
			<-ctx.Done()
		}
	})
	senders.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				poll(events)
			}
		}
	})
	go func() {
		senders.Wait()
		close(events)
	}()
	return events, nil
}

func subscribe() (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	_ = conn.SetReadBuffer(1 << 20) // a service proxy rewrites thousands of rules at once; ENOBUFS is an event too
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// listen turns notifications into events until the subscription breaks or ctx is done. It closes conn.
func listen(ctx context.Context, conn *netlink.Conn, events chan<- struct{}) {
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
			notify(events)
		case err != nil:
			return
		}
	}
}

// notify sends one event if none is waiting.
func notify(events chan<- struct{}) {
	select {
	case events <- struct{}{}:
	default:
	}
}

// concernsUs reports whether a notification is about something that Observe looks at: anything in a table of ours, and
// in those of iptables the tables themselves, our chains and the base chains.
func concernsUs(m netlink.Message) bool {
	kind := uint16(m.Header.Type) & 0xff
	if len(m.Data) < 4 || uint16(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES || kind == unix.NFT_MSG_NEWGEN {
		return false
	}
	attrs, err := attributes(m.Data[4:])
	if err != nil {
		return true
	}
	table, family := cstring(attrs[unix.NFTA_RULE_TABLE]), nftables.TableFamily(m.Data[0]) // attribute 1 in all of them
	chain := ""
	for _, f := range netstate.Families {
		if family == tableFamily(f) && table == nativeTable(f).Name {
			return true
		}
	}
	switch kind {
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chain = cstring(attrs[unix.NFTA_RULE_CHAIN])
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chain = cstring(attrs[unix.NFTA_CHAIN_NAME])
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
	default:
		return false
	}
	renamed := kind == unix.NFT_MSG_NEWCHAIN && m.Header.Flags&(netlink.Create|netlink.Excl) == 0 // or its policy altered
	isIP := family == nftables.TableFamilyIPv4 || family == nftables.TableFamilyIPv6
	return isIP && slices.ContainsFunc(sites[:], func(s site) bool {
		return table == s.table && (renamed || chain == "" || chain == s.base || chain == s.chain)
	})
}

// legacyPoll returns a function that sends an event if the legacy tables are not as the last time.
func (f *Firewall) legacyPoll() func(events chan<- struct{}) {
	last, _ := fingerprint()
	return func(events chan<- struct{}) {
		if now, err := fingerprint(); err == nil && now != last {
			last = now
			f.legacyChanged.Store(true)
			notify(events)
		}
	}
}
