package filter

import (
	"context"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

// unheard is how many bytes of notifications wait until they are read; ours of 10,000 elements are some. If more come,
// that is an event.
const unheard = 32 << 20

// Watch sends an event whenever somebody else has changed something in the table. The channel is closed when ctx is
// done or the subscription broke; then watch again and observe everything.
func (f *Filter) Watch(ctx context.Context) (<-chan struct{}, error) {
	conn, err := nfnl.Subscribe(unheard)
	if err != nil {
		return nil, err
	}
	events := make(chan struct{}, 1)
	go func() {
		defer close(events)
		nfnl.Listen(ctx, conn, f.isForeign, events)
	}()
	return events, nil
}

// isForeign reports whether a notification is about our table, and of a change that another socket than ours has made.
func (f *Filter) isForeign(m netlink.Message) bool {
	kind := uint16(m.Header.Type) & 0xff
	own := f.port.Load()
	if len(m.Data) < 4 || uint16(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES || kind == unix.NFT_MSG_NEWGEN ||
		own != 0 && m.Header.PID == own {
		return false
	}
	family := nftables.TableFamily(m.Data[0])
	isOurs := func(f netstate.Family) bool { return nfnl.TableFamily(f) == family }
	if !slices.ContainsFunc(families[:], isOurs) {
		return false
	}
	for t, data := range nfnl.Walk(m.Data[4:]) {
		if t == unix.NFTA_RULE_TABLE { // attribute 1 in all of them
			return nfnl.CString(data) == netstate.FilterTable
		}
	}
	return true
}
