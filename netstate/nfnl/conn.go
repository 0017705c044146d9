// Package nfnl reads nf_tables over netlink as it is: netstate/firewall and netstate/filter compare what they want with
// that, and the doctor decides by it what strangers' rules do.
//
// google/nftables reads rules too, but drops expressions and attributes that it does not know, so that an altered rule
// could look intact. A Reader drops nothing.
package nfnl

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// ErrMoved is the error of a reading during which the rules changed.
var ErrMoved = errors.New("rules kept changing while they were read")

// callTimeout is how long the kernel may be silent during a request: an answer that got lost must not stop the agent for ever.
const callTimeout = 10 * time.Second

// Socket is the part of netlink.Conn that a Conn uses.
type Socket interface {
	Execute(m netlink.Message) ([]netlink.Message, error)
	SetDeadline(t time.Time) error
	Close() error
}

// patient is a socket that waits for an answer of any length, as long as more of it comes.
type patient struct{ *netlink.Conn }

// Execute sends a request and returns its answers.
func (p patient) Execute(m netlink.Message) (answers []netlink.Message, err error) {
	if m, err = p.Send(m); err != nil {
		return nil, err
	}
	for answer, err := range p.ReceiveIter() {
		if err != nil {
			return nil, err
		}
		answers = append(answers, answer)
		if err := p.SetDeadline(time.Now().Add(callTimeout)); err != nil {
			return nil, err
		}
	}
	return answers, netlink.Validate(m, answers)
}

// Conn holds the netlink socket over which nf_tables is read. It is opened by the first request.
type Conn struct{ Socket Socket }

// Close closes the socket. The Conn can be used again.
func (c *Conn) Close() {
	if c.Socket != nil {
		c.Socket.Close()
		c.Socket = nil
	}
}

// call sends one request and returns its answers. The names are those of a table and perhaps of something in it.
func (c *Conn) call(
	msg uint16, flags netlink.HeaderFlags, family nftables.TableFamily, names []string,
) ([]netlink.Message, error) {
	if c.Socket == nil {
		conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return nil, err
		}
		c.Socket = patient{conn}
	}
	attrs := netlink.NewAttributeEncoder()
	for i, name := range names {
		t := uint16(unix.NFTA_RULE_TABLE + i) // and NFTA_RULE_CHAIN, NFTA_SET_NAME, NFTA_SET_ELEM_LIST_SET
		if i > 0 && msg == unix.NFT_MSG_GETCHAIN {
			t = unix.NFTA_CHAIN_NAME
		}
		attrs.String(t, name)
	}
	data, err := attrs.Encode()
	if err != nil {
		return nil, err
	}
	if err := c.Socket.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return nil, err
	}
	return c.Socket.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | netlink.HeaderType(msg), Flags: netlink.Request | flags},
		Data:   append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, data...),
	})
}

// TableFamily returns nf_tables' number of a family.
func TableFamily(family netstate.Family) nftables.TableFamily {
	switch family {
	case netstate.IPv6:
		return nftables.TableFamilyIPv6
	case netstate.Ethernet:
		return nftables.TableFamilyBridge
	}
	return nftables.TableFamilyIPv4
}

// familyNames are nft's.
var familyNames = map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyINet: "inet", nftables.TableFamilyBridge: "bridge", nftables.TableFamilyARP: "arp",
	nftables.TableFamilyNetdev: "netdev"}

// FamilyName returns nft's name of a family.
func FamilyName(family nftables.TableFamily) string {
	if name, ok := familyNames[family]; ok {
		return name
	}
	return fmt.Sprintf("family %d", family)
}

// Unsupported reports whether err is what a kernel without nf_tables answers.
func Unsupported(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT)
}
