package ruletrace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/nfnl"
)

// What golang.org/x/sys does not have.
const (
	tableOwner  = 2 // NFT_TABLE_F_OWNER
	hookDevices = 4 // NFTA_HOOK_DEVS
	deviceName  = 1 // NFTA_DEVICE_NAME
)

// Chains of a table.
const (
	markChain   = "mark"
	beginPrefix = "begin-"
	endPrefix   = "end-"
)

// chains makes the two chains of a hook, for some devices if it is a hook of devices.
func (t *tables) chains(table *nftables.Table, h hook, devices []string) error {
	suffix := h.name
	if devices != nil {
		t.numbered++
		suffix += "-" + strconv.Itoa(t.numbered)
	}
	begin, end := &nftables.Chain{Name: beginPrefix + suffix, Table: table}, endPrefix+suffix
	err := t.send(newChain(table, begin.Name, h, math.MinInt32, devices), newChain(table, end, h, math.MaxInt32, devices))
	if err == nil {
		t.rule(begin, []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: markChain}})
		err = t.nft.Flush()
	}
	if err != nil {
		return fmt.Errorf("trace the family %s at %s: %w", nfnl.FamilyName(table.Family), h.name, err)
	}
	return nil
}

func (t *tables) rule(c *nftables.Chain, exprs []expr.Any) {
	t.nft.AddRule(&nftables.Rule{Table: c.Table, Chain: c, Exprs: exprs})
}

// create makes an empty table that its socket owns, if the kernel knows of that.
func (t *tables) create(family nftables.TableFamily) error {
	if t.owner {
		err := t.send(newTable(t.name, family, tableOwner))
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) || len(t.made) > 0 {
			return err
		}
		t.owner, t.name = false, tableName
	}
	t.nft.DelTable(&nftables.Table{Name: t.name, Family: family}) // of one that crashed
	_ = t.nft.Flush()
	return t.send(newTable(t.name, family, 0))
}

func newTable(name string, family nftables.TableFamily, flags uint32) netlink.Message {
	return newObject(unix.NFT_MSG_NEWTABLE, family, func(a *netlink.AttributeEncoder) {
		a.String(unix.NFTA_TABLE_NAME, name)
		a.Uint32(unix.NFTA_TABLE_FLAGS, flags)
	})
}

// newChain is the message that makes a base chain. google/nftables knows one device at most, and the chains of many
// devices take the kernel longer than one chain of all.
func newChain(table *nftables.Table, name string, h hook, priority int32, devices []string) netlink.Message {
	return newObject(unix.NFT_MSG_NEWCHAIN, table.Family, func(a *netlink.AttributeEncoder) {
		a.String(unix.NFTA_CHAIN_TABLE, table.Name)
		a.String(unix.NFTA_CHAIN_NAME, name)
		a.String(unix.NFTA_CHAIN_TYPE, string(nftables.ChainTypeFilter))
		a.Nested(unix.NFTA_CHAIN_HOOK, func(a *netlink.AttributeEncoder) error {
			a.Uint32(unix.NFTA_HOOK_HOOKNUM, uint32(h.number))
			a.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(priority))
			switch len(devices) {
			case 0:
			case 1: // before Linux 5.5 there is nothing else
				a.String(unix.NFTA_HOOK_DEV, devices[0])
			default:
				a.Nested(hookDevices, func(a *netlink.AttributeEncoder) error {
					for _, d := range devices {
						a.String(deviceName, d)
					}
					return nil
				})
			}
			return nil
		})
	})
}

// newObject is a message that makes something new.
func newObject(kind uint16, family nftables.TableFamily, fill func(*netlink.AttributeEncoder)) netlink.Message {
	attrs := netlink.NewAttributeEncoder()
	attrs.ByteOrder = binary.BigEndian
	fill(attrs)
	data, _ := attrs.Encode() // no attribute is too long: names are the kernel's and ours
	flags := netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl
	return netlink.Message{Header: netlink.Header{Type: message(kind), Flags: flags},
		Data: append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, data...)}
}

// answerTimeout bounds the wait for the kernel's answer to a transaction.
const answerTimeout = 2 * time.Second

// send sends messages as one transaction, which google/nftables has no messages for.
func (t *tables) send(messages ...netlink.Message) error {
	edge := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	}
	all := slices.Concat([]netlink.Message{edge(unix.NFNL_MSG_BATCH_BEGIN)}, messages,
		[]netlink.Message{edge(unix.NFNL_MSG_BATCH_END)})
	if _, err := t.conn.SendMessages(all); err != nil {
		return err
	}
	if err := t.conn.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	var errs []error
	for range messages { // each has an answer, but if all are refused at once
		_, err := t.conn.Receive()
		errs = append(errs, err)
		if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	return errors.Join(append(errs, t.conn.SetReadDeadline(time.Time{}))...)
}

// isOurs reports whether the event is of a table of a Tracer, this one or another.
func (e event) isOurs() bool { return strings.HasPrefix(e.Table, tableName) }
