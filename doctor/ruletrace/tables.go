package ruletrace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableName begins the names of all tables of Tracers.
const tableName = "twill-trace"

// tables are a Tracer's own tables, one of each family.
type tables struct {
	nft  *nftables.Conn
	conn *netlink.Conn // of nft: google/nftables cannot give a table the flag owner
	name string
	// owner reports whether the kernel removes the tables when the socket closes.
	owner bool
	made  []*nftables.Table
}

func openTables() (*tables, error) {
	t := &tables{owner: true}
	keep := func(c *netlink.Conn) error {
		t.conn = c
		_ = c.SetReadBuffer(readBuffer) // the kernel acknowledges each message of a batch
		return c.SetWriteBuffer(readBuffer)
	}
	var err error
	if t.nft, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(keep)); err != nil {
		return nil, fmt.Errorf("open a netfilter socket: %w", err)
	}
	t.name = fmt.Sprintf("%s-%d", tableName, t.conn.PID()) // no other socket of the namespace has this number
	return t, nil
}

// close removes the tables.
func (t *tables) close() error {
	var err error
	if !t.owner {
		for _, table := range t.made {
			t.nft.DelTable(table)
		}
		if err = t.nft.Flush(); err != nil {
			err = fmt.Errorf("remove the tables %s: %w", t.name, err)
		}
	}
	t.made = nil
	return errors.Join(err, t.nft.CloseLasting())
}

// hook is a hook of a family.
type hook struct {
	name   string
	number nftables.ChainHook
}

var (
	inetHooks = []hook{
		{"prerouting", unix.NF_INET_PRE_ROUTING}, {"input", unix.NF_INET_LOCAL_IN}, {"forward", unix.NF_INET_FORWARD},
		{"output", unix.NF_INET_LOCAL_OUT}, {"postrouting", unix.NF_INET_POST_ROUTING},
	}
	arpHooks     = []hook{{"input", 0}, {"output", 1}, {"forward", 2}}
	ingressHooks = []hook{{"ingress", unix.NF_NETDEV_INGRESS}}
	egressHooks  = []hook{{"egress", unix.NF_NETDEV_EGRESS}}
)

// inetIngress is NF_INET_INGRESS, which golang.org/x/sys does not have.
const inetIngress = 5

// hookName returns the name of a base chain's hook.
func hookName(family byte, number uint32) string {
	hooks := inetHooks
	switch {
	case family == unix.NFPROTO_NETDEV:
		hooks = slices.Concat(ingressHooks, egressHooks)
	case family == unix.NFPROTO_ARP:
		hooks = arpHooks
	case family == unix.NFPROTO_INET && number == inetIngress:
		return "ingress"
	}
	if i := slices.IndexFunc(hooks, func(h hook) bool { return uint32(h.number) == number }); i >= 0 {
		return hooks[i].name
	}
	return fmt.Sprintf("hook %d", number)
}

// make makes all tables. It returns an error if there is none for IP, and otherwise what could not be made.
func (t *tables) make(m marks) (missed []error, err error) {
	if err := t.family(m, nftables.TableFamilyINet, inetHooks); err != nil {
		return nil, err
	}
	for family, hooks := range map[nftables.TableFamily][]hook{
		nftables.TableFamilyBridge: inetHooks, nftables.TableFamilyARP: arpHooks[:2],
	} {
		if err := t.family(m, family, hooks); err != nil {
			missed = append(missed, err)
		}
	}
	return append(missed, t.devices(m)...), nil
}

// family makes a table with its chains, on all devices.
func (t *tables) family(m marks, family nftables.TableFamily, hooks []hook) error {
	table, err := t.table(m, family)
	if err != nil {
		return err
	}
	for _, h := range hooks {
		t.chains(table, h, "")
	}
	return t.flush(family, hooks)
}

// devices makes the table of the family netdev, whose chains belong to devices.
func (t *tables) devices(m marks) []error {
	links, err := net.Interfaces()
	if err != nil {
		return []error{fmt.Errorf("list devices: %w", err)}
	}
	table, err := t.table(m, nftables.TableFamilyNetdev)
	if err != nil {
		return []error{err}
	}
	var missed []error
	for _, hooks := range [][]hook{ingressHooks, egressHooks} {
		for _, l := range links {
			t.chains(table, hooks[0], l.Name)
		}
		if err := t.flush(table.Family, hooks); err == nil {
			continue
		}
		for _, l := range links { // one of them has gone, or can do no such thing
			t.chains(table, hooks[0], l.Name)
			if err := t.flush(table.Family, hooks); err != nil {
				missed = append(missed, fmt.Errorf("%w: device %s", err, l.Name))
			}
		}
	}
	return missed
}

func (t *tables) flush(family nftables.TableFamily, hooks []hook) error {
	if err := t.nft.Flush(); err != nil {
		return fmt.Errorf("trace the family %s at %s: %w", familyName(byte(family)), hooks[0].name, err)
	}
	return nil
}

// table makes a table with the sets and the chain "mark", to which all others jump.
func (t *tables) table(m marks, family nftables.TableFamily) (*nftables.Table, error) {
	fail := func(err error) error {
		return fmt.Errorf("make a table of the family %s: %w", familyName(byte(family)), err)
	}
	if err := t.create(family); err != nil {
		return nil, fail(err)
	}
	table := &nftables.Table{Name: t.name, Family: family}
	t.made = append(t.made, table)
	chain := t.nft.AddChain(&nftables.Chain{Name: markChain, Table: table})
	for _, s := range m.sets {
		set := &nftables.Set{Table: table, Name: s.name, KeyType: s.kind}
		var elements []nftables.SetElement
		for _, k := range s.keys {
			elements = append(elements, nftables.SetElement{Key: k})
		}
		if err := t.nft.AddSet(set, elements); err != nil {
			return nil, fail(err)
		}
		for _, r := range s.rules {
			if r.arp || family != nftables.TableFamilyARP {
				lookup := &expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set.Name, SetID: set.ID}
				t.rule(chain, slices.Concat(r.exprs, []expr.Any{lookup}, mark()))
			}
		}
	}
	if err := t.nft.Flush(); err != nil {
		return nil, fail(err)
	}
	return table, nil
}

// Chains of a table, beside those at the end of hooks.
const (
	markChain   = "mark"
	beginPrefix = "begin-"
	endPrefix   = "end-"
)

// chains makes the two chains of a hook.
func (t *tables) chains(table *nftables.Table, h hook, device string) {
	suffix := h.name
	if device != "" {
		suffix += "-" + device
	}
	c := nftables.Chain{Name: beginPrefix + suffix, Table: table, Device: device, Type: nftables.ChainTypeFilter,
		Hooknum: &h.number, Priority: nftables.ChainPriorityRef(math.MinInt32)}
	begin := t.nft.AddChain(&c)
	t.rule(begin, []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: markChain}})
	end := c
	end.Name, end.Priority = endPrefix+suffix, nftables.ChainPriorityRef(math.MaxInt32)
	t.nft.AddChain(&end)
}

func (t *tables) rule(c *nftables.Chain, exprs []expr.Any) {
	t.nft.AddRule(&nftables.Rule{Table: c.Table, Chain: c, Exprs: exprs})
}

// tableOwner is NFT_TABLE_F_OWNER, which golang.org/x/sys does not have.
const tableOwner = 2

// create makes an empty table that its socket owns, if the kernel knows of that.
func (t *tables) create(family nftables.TableFamily) error {
	if t.owner {
		err := t.newTable(family, tableOwner)
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) || len(t.made) > 0 {
			return err
		}
		t.owner, t.name = false, tableName
	}
	t.nft.DelTable(&nftables.Table{Name: t.name, Family: family}) // of one that crashed
	_ = t.nft.Flush()
	return t.newTable(family, 0)
}

func (t *tables) newTable(family nftables.TableFamily, flags uint32) error {
	attrs := netlink.NewAttributeEncoder()
	attrs.ByteOrder = binary.BigEndian
	attrs.String(unix.NFTA_TABLE_NAME, t.name)
	attrs.Uint32(unix.NFTA_TABLE_FLAGS, flags)
	data, err := attrs.Encode()
	if err != nil {
		return err
	}
	edge := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	}
	_, err = t.conn.SendMessages([]netlink.Message{
		edge(unix.NFNL_MSG_BATCH_BEGIN),
		{
			Header: netlink.Header{Type: message(unix.NFT_MSG_NEWTABLE),
				Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl},
			Data: append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, data...),
		},
		edge(unix.NFNL_MSG_BATCH_END),
	})
	if err == nil {
		_, err = t.conn.Receive()
	}
	return err
}

// isOurs reports whether a table is of a Tracer, this one or another.
func (p place) isOurs() bool { return strings.HasPrefix(p.table, tableName) }

func (p place) isBegin() bool { return p.isOurs() && strings.HasPrefix(p.chain, beginPrefix) }
