package firewall

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/loop"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
	"github.com/twill-net/twill/netstate/procfs"
)

// Watch sends an event whenever rules that concern our chains may have changed. nf_tables notifies of changes; legacy
// tables are looked at every six seconds. The channel is closed when ctx is done or the subscription broke; then watch again
// and observe everything.
func (f *Firewall) Watch(ctx context.Context) (<-chan struct{}, error) {
	events := make(chan struct{}, 1)
	conn, err := nfnl.Subscribe(1 << 20)
	if err != nil && !nfnl.Unsupported(err) && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	poll, interval := f.legacyPoll(), f.legacyInterval
	var senders sync.WaitGroup
	senders.Go(func() {
		defer cancel()
		if err == nil {
			nfnl.Listen(ctx, conn, concernsUs, events)
		} else {
			<-ctx.Done()
		}
	})
	senders.Go(func() {
		for loop.Sleep(ctx, procfs.UntilNext(interval)) {
			poll(events)
		}
	})
	go func() {
		senders.Wait()
		close(events)
	}()
	return events, nil
}

// concernsUs reports whether a notification is about something that Observe looks at: anything in a table of ours, and
// in those of iptables the tables themselves, our chains and the base chains.
func concernsUs(m netlink.Message) bool {
	kind := uint16(m.Header.Type) & 0xff
	if len(m.Data) < 4 || uint16(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES || kind == unix.NFT_MSG_NEWGEN {
		return false
	}
	attrs, err := nfnl.ParseAttributes(m.Data[4:])
	if err != nil {
		return true
	}
	table := attrs.String(unix.NFTA_RULE_TABLE) // attribute 1 in all of them
	family := nftables.TableFamily(m.Data[0])
	chain := ""
	for _, f := range netstate.Families {
		if family == nfnl.TableFamily(f) && table == nativeTable(f).Name {
			return true
		}
	}
	switch kind {
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chain = attrs.String(unix.NFTA_RULE_CHAIN)
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chain = attrs.String(unix.NFTA_CHAIN_NAME)
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
			loop.Notify(events)
		}
	}
}
