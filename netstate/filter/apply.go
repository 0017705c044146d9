package filter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nfnl"
)

const (
	// room is for a whole transaction in the socket, and for the answers to its messages. The kernel uses only as much
	// of it as there is to send: 1,000 chains of ten rules with 10,000 elements are ten megabytes.
	room = 256 << 20
	// timeout bounds a transaction: an answer that got lost must not stop the agent for ever.
	timeout = time.Minute
	// membarrierGlobal is MEMBARRIER_CMD_GLOBAL of linux/membarrier.h.
	membarrierGlobal = 1
)

// Apply carries out the plan in three steps, each one transaction for all families. The first makes what nothing refers
// to yet, the second is all that packets can notice, and the third deletes what nothing refers to any more. An error
// leaves what the steps before have done. If the kernel refuses a step, each family's part of it is tried for itself:
// what is wrong with one table does not keep the others from what is wanted.
//
// A packet that is on its way while the table changes goes on with the rules as they were. But what it looks up in a set
// is as it is then, and a chain that a map sends it to is empty, if it is no older than the change. So a new chain needs
// to be there before a map leads to it, and the sets of the old ones as long as packets look into them: a table goes a step
// after its hooks.
func (f *Filter) Apply(ctx context.Context, plan netstate.Plan) error {
	if err := ctx.Err(); err != nil || len(plan) == 0 {
		return err
	}
	if err := f.apply(plan); err != nil {
		f.closeWriter() // with what was written, and answers that may be still to come
		return fmt.Errorf("write the table %s, %d changes: %w", netstate.FilterTable, len(plan), err)
	}
	return nil
}

func (f *Filter) apply(plan netstate.Plan) error {
	if err := f.openWriter(); err != nil {
		return err
	}
	var all []*transaction
	var first error
	for _, family := range families {
		changes := slices.DeleteFunc(slices.Clone(plan), func(c netstate.Change) bool { return familyOf(c) != family })
		tx, err := f.begin(family, changes)
		if err != nil {
			first = cmp.Or(first, err)
			continue
		}
		all = append(all, tx)
	}
	for step := range steps {
		if err := f.commit(all, step); err != nil {
			first = cmp.Or(first, err)
			if all, err = f.commitEach(all, step); err != nil {
				return err
			}
		}
	}
	return first
}

// commitEach carries out a step of each transaction for itself, and returns those that the kernel took.
func (f *Filter) commitEach(all []*transaction, step int) (taken []*transaction, err error) {
	for _, tx := range all {
		f.closeWriter() // with what was written of the step before
		if err := f.openWriter(); err != nil {
			return nil, err
		}
		clear(tx.types) // what it says of the step before does not hold
		if f.commit([]*transaction{tx}, step) == nil {
			taken = append(taken, tx)
		}
	}
	f.closeWriter()
	return taken, f.openWriter()
}

// commit carries out a step of the transactions.
func (f *Filter) commit(all []*transaction, step int) error {
	if !slices.ContainsFunc(all, func(tx *transaction) bool { return len(tx.steps[step]) > 0 }) {
		return nil
	}
	if step == deleting {
		// Until no packet is on its way any more that has seen the step before: the kernel waits for a grace period of
		// RCU. Where it does not know how (nohz_full), packets still need much less time than a transaction.
		_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
	}
	for _, tx := range all {
		tx.Conn = f.writer
		if err := tx.write(step); err != nil {
			return err
		}
	}
	if err := f.socket.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	err := f.writer.Flush()
	var first *netlink.OpError // every change after the one that is wrong may have failed, too
	if errors.As(err, &first) {
		return first
	}
	return err
}

// openWriter opens the socket over which all changes are made: its number tells them from others'. The library's own is one for
// tests, which leads to ours, as its messages have to be corrected.
func (f *Filter) openWriter() error {
	if f.writer != nil {
		return nil
	}
	socket, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(socket.SetWriteBuffer(room), socket.SetReadBuffer(room)); err != nil {
		socket.Close()
		return err
	}
	f.socket = socket
	f.port.Store(socket.PID())
	f.writer, err = nftables.New(nftables.WithTestDial(f.exchange))
	return err
}

// exchange sends messages, or receives some where there are none.
func (f *Filter) exchange(messages []netlink.Message) (answers []netlink.Message, err error) {
	if messages == nil {
		answers, err = f.socket.Receive()
	} else {
		for i := range messages {
			messages[i].Header.PID = 0 // that of the socket for tests
			nfnl.CorrectRule(messages[i])
		}
		_, err = f.socket.SendMessages(messages)
	}
	if op, ok := errors.AsType[*netlink.OpError](err); ok {
		return nil, op.Err // the socket for tests makes another one
	}
	return answers, err
}

func (f *Filter) closeWriter() {
	if f.writer != nil {
		f.port.Store(0)
		f.socket.Close()
		f.writer, f.socket = nil, nil
	}
}
