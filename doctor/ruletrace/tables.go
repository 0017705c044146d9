package ruletrace

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/nfnl"
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
	// numbered is how many pairs of chains belong to devices.
	numbered int
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

// make makes all tables. It returns an error if there is none for IP, and otherwise what could not be made.
func (t *tables) make(m marks) (missed []error, err error) {
	if err := t.family(m, nftables.TableFamilyINet, inetHooks); err != nil {
		return nil, err
	}
	if err := t.family(m, nftables.TableFamilyBridge, inetHooks); err != nil {
		missed = append(missed, err)
	}
	if err := t.family(m, nftables.TableFamilyARP, arpHooks[:2]); err != nil {
		missed = append(missed, err)
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
		if err := t.chains(table, h, nil); err != nil {
			return err
		}
	}
	return nil
}

// devices makes the table of the family netdev, whose chains belong to devices.
func (t *tables) devices(m marks) []error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return []error{fmt.Errorf("list devices: %w", err)}
	}
	var links []string
	for _, i := range interfaces {
		links = append(links, i.Name)
	}
	table, err := t.table(m, nftables.TableFamilyNetdev)
	if err != nil {
		return []error{err}
	}
	return append(t.onDevices(table, ingressHooks[0], links), t.onDevices(table, egressHooks[0], links)...)
}

// batch is how many devices share their chains. The kernel allows 256 (NFT_NETDEVICE_MAX).
const batch = 200

// onDevices makes the chains of a hook for all devices.
func (t *tables) onDevices(table *nftables.Table, h hook, links []string) []error {
	var errs []error
	for some := range slices.Chunk(links, batch) {
		err := t.chains(table, h, some)
		switch {
		case err == nil:
		case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL): // the kernel has no such hook
			return append(errs, err)
		case len(some) > 1: // one of them has gone
			for one := range slices.Chunk(some, 1) {
				errs = append(errs, t.onDevices(table, h, one)...)
			}
		case !errors.Is(err, unix.ENOENT):
			errs = append(errs, err)
		}
	}
	return errs
}

// table makes a table with the sets and the chain "mark", to which all others jump.
func (t *tables) table(m marks, family nftables.TableFamily) (*nftables.Table, error) {
	fail := func(err error) error {
		return fmt.Errorf("make a table of the family %s: %w", nfnl.FamilyName(family), err)
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
