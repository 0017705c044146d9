package nfnl

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Reader reads nf_tables. It keeps the first error; whatever it returns after that is meaningless.
type Reader struct {
	Conn *Conn
	Err  error
}

// Call returns the answers to a request about a table, and none if that or what is named in it does not exist.
func (r *Reader) Call(
	msg uint16, flags netlink.HeaderFlags, family netstate.Family, names ...string,
) []netlink.Message {
	return r.call(msg, flags, TableFamily(family), names...)
}

func (r *Reader) call(
	msg uint16, flags netlink.HeaderFlags, family nftables.TableFamily, names ...string,
) []netlink.Message {
	if r.Err != nil {
		return nil
	}
	replies, err := r.Conn.call(msg, flags, family, names)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Conn.Close() // whatever is still in this socket must not answer the next request
		r.Err = fmt.Errorf("read nf_tables %q: %w", names, err)
		return nil
	}
	for _, m := range replies {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			r.Err = ErrMoved
			return nil
		}
	}
	return replies
}

// Attributes decodes a list of attributes.
func (r *Reader) Attributes(b []byte) Attributes {
	m, err := ParseAttributes(b)
	if err != nil && r.Err == nil {
		r.Err = fmt.Errorf("decode nf_tables: %w", err)
	}
	return m
}

// Generation returns a number that changes with every nf_tables rule, iptables-nft's included.
func (r *Reader) Generation() (id uint32) {
	ok := false
	for _, m := range r.Call(unix.NFT_MSG_GETGEN, 0, netstate.IPv4) {
		id, ok = r.Attributes(m.Data[4:]).Uint32(unix.NFTA_GEN_ID)
	}
	if !ok && r.Err == nil {
		r.Err = errors.New("read the nf_tables generation: no answer")
	}
	return id
}

// Table is a table's header.
type Table struct {
	Flags uint32
	Use   uint32 // how many chains, sets, objects and flowtables it has
}

// Dormant reports whether the table is switched off as a whole.
func (t Table) Dormant() bool { return t.Flags&unix.NFT_TABLE_F_DORMANT != 0 }

// Tables returns the tables of a family by their names.
func (r *Reader) Tables(family netstate.Family) map[string]Table {
	tables := map[string]Table{}
	for _, m := range r.Call(unix.NFT_MSG_GETTABLE, netlink.Dump, family) {
		name, t := r.table(m)
		tables[name] = t
	}
	return tables
}

func (r *Reader) table(m netlink.Message) (name string, t Table) {
	attrs := r.Attributes(m.Data[4:])
	t.Flags, _ = attrs.Uint32(unix.NFTA_TABLE_FLAGS)
	t.Use, _ = attrs.Uint32(unix.NFTA_TABLE_USE)
	return attrs.String(unix.NFTA_TABLE_NAME), t
}

// Rules returns the rules of one chain, or of a whole table, in their order; none if there is no such chain.
func (r *Reader) Rules(family netstate.Family, names ...string) []Rule {
	return r.RulesIn(TableFamily(family), names...)
}

// RulesIn is Rules for tables of any family.
func (r *Reader) RulesIn(family nftables.TableFamily, names ...string) []Rule {
	var rules []Rule
	for _, m := range r.call(unix.NFT_MSG_GETRULE, netlink.Dump, family, names...) {
		rule, err := ParseRule(m.Data)
		if err != nil {
			r.Err = fmt.Errorf("read a rule of %q: %w", names, err)
			return nil
		}
		rules = append(rules, rule)
	}
	return rules
}
