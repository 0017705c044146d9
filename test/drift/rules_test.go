//go:build soak

package drift

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
)

// ruleDump is a list that nfnetlink gives: the attributes that name an object, and those that change by themselves.
type ruleDump struct {
	kind string
	get  uint16
	name []uint16
	drop []uint16
}

// ruleDumps: handles, numbers of uses and counters are not seen. Rules are numbered, as they have no names.
var ruleDumps = []ruleDump{
	{"table", unix.NFT_MSG_GETTABLE, []uint16{1}, []uint16{3, 4}},
	{"chain", unix.NFT_MSG_GETCHAIN, []uint16{1, 3}, []uint16{2, 6, 8}},
	{"rule", unix.NFT_MSG_GETRULE, []uint16{1, 2}, []uint16{3, 6}},
	{"set", unix.NFT_MSG_GETSET, []uint16{1, 2}, []uint16{16}},
	{"object", unix.NFT_MSG_GETOBJ, []uint16{1, 3, 2}, []uint16{4, 5, 6}},
	{"flowtable", unix.NFT_MSG_GETFLOWTABLE, []uint16{1, 2}, []uint16{4, 5}},
}

// rules adds what there is of nftables, of which iptables' rules are a part.
func (c *camera) rules(p picture) error {
	for _, d := range ruleDumps {
		messages, err := c.nftables(d.get, 0)
		if err != nil {
			return fmt.Errorf("list %ss: %w", d.kind, err)
		}
		for _, m := range messages {
			object := addRule(p, d, m.Data)
			if d.kind == "set" {
				if err := c.elements(p, object, m.Data); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c *camera) nftables(get uint16, family byte, attrs ...byte) ([]netlink.Message, error) {
	return c.filter.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | get),
			Flags: netlink.Request | netlink.Dump},
		Data: append([]byte{family, 0, 0, 0}, attrs...)})
}

func addRule(p picture, d ruleDump, m []byte) string {
	attrs := map[uint16][]byte{}
	for kind, value := range rtnl.Attributes(m[4:]) {
		attrs[kind] = value
	}
	words := []string{"nft", d.kind, fmt.Sprint(m[0])}
	for _, a := range d.name {
		words = append(words, strings.Trim(string(attrs[a]), "\x00"))
	}
	object := strings.Join(words, " ")
	if d.kind == "rule" {
		for n := 1; ; n++ {
			if _, ok := p[attribute{object: fmt.Sprintf("%s #%d", object, n), name: "present"}]; !ok {
				object = fmt.Sprintf("%s #%d", object, n)
				break
			}
		}
	}
	p[attribute{object: object, name: "present"}] = "yes"
	for kind, value := range attrs {
		switch {
		case slices.Contains(d.drop, kind) || slices.Contains(d.name, kind):
		case d.kind == "rule" && kind == 4:
			p[attribute{object: object, id: kind}] = expressions(value)
		default:
			p[attribute{object: object, id: kind}] = hex.EncodeToString(value)
		}
	}
	return object
}

// expressions writes a rule's expressions, without what they have counted.
func expressions(list []byte) string {
	var words []string
	for _, e := range rtnl.Attributes(list) {
		name := strings.Trim(string(rtnl.Attribute(e, 0, 1)), "\x00")
		if name != "counter" && name != "last" {
			name += ":" + hex.EncodeToString(rtnl.Attribute(e, 0, 2))
		}
		words = append(words, name)
	}
	return strings.Join(words, " ")
}

// elements adds how many elements a set has: the labs' tables have none.
func (c *camera) elements(p picture, object string, set []byte) error {
	var ask []byte
	for kind, value := range rtnl.Attributes(set[4:]) {
		if kind == 1 || kind == 2 {
			ask = append(ask, byte(len(value)+4), 0, byte(kind), 0)
			ask = append(append(ask, value...), make([]byte, -len(value)&3)...)
		}
	}
	messages, err := c.nftables(unix.NFT_MSG_GETSETELEM, set[0], ask...)
	n := 0
	for _, m := range messages {
		for range rtnl.Attributes(rtnl.Attribute(m.Data, 4, 3)) {
			n++
		}
	}
	p[attribute{object: object, name: "elements"}] = fmt.Sprint(n)
	return err
}
