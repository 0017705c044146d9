package filter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"github.com/twill-net/twill/netstate"
)

const (
	// room is for a whole transaction in the socket, and for the answers to its messages. The kernel uses only as much
	// of it as there is to send: 1,000 chains of ten rules with 10,000 elements are ten megabytes.
	room = 256 << 20
	// timeout bounds a transaction: an answer that got lost must not stop the agent for ever.
	timeout = time.Minute
)

// Apply carries out the plan, in all families, as one transaction: all of it or, after an error, nothing.
//
// That needs large buffers for a large plan, and is worth it: nothing refers to a set before it is full, whatever the
// order of the plan, and a plan that fails leaves nothing behind.
func (f *Filter) Apply(ctx context.Context, plan netstate.Plan) error {
	if err := ctx.Err(); err != nil || len(plan) == 0 {
		return err
	}
	if err := f.openWriter(); err != nil {
		return fmt.Errorf("write the table %s: %w", netstate.FilterTable, err)
	}
	for _, family := range families {
		changes := slices.DeleteFunc(slices.Clone(plan), func(c netstate.Change) bool { return familyOf(c) != family })
		tx := transaction{Conn: f.writer, reader: f.reader(), family: family, plan: changes}
		if err := tx.write(); err != nil {
			f.closeWriter() // with what was written
			return fmt.Errorf("write the table %s: %w", netstate.FilterTable, err)
		}
	}
	err := f.socket.SetDeadline(time.Now().Add(timeout))
	if err == nil {
		err = f.writer.Flush()
	}
	if err != nil {
		f.closeWriter()            // there may be more answers
		var first *netlink.OpError // every change after the one that is wrong may have failed, too
		if errors.As(err, &first) {
			err = first
		}
		return fmt.Errorf("write the table %s, %d changes: %w", netstate.FilterTable, len(plan), err)
	}
	return nil
}

// openWriter opens the socket over which all changes are made: its number tells them from others'.
func (f *Filter) openWriter() error {
	if f.writer != nil {
		return nil
	}
	writer, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		f.socket = c
		f.port.Store(c.PID())
		return errors.Join(c.SetWriteBuffer(room), c.SetReadBuffer(room))
	}))
	if err == nil {
		f.writer = writer
	}
	return err
}

func (f *Filter) closeWriter() {
	if f.writer != nil {
		f.port.Store(0)
		_ = f.writer.CloseLasting()
		f.writer, f.socket = nil, nil
	}
}
