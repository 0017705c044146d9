// Package wire joins pods to the node's bridge: it makes the bridge where the agent has not, the veth pair of
// a pod, and its addresses and routes, and reads back what became of them.
package wire

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Node is this process's network namespace, where the bridge is.
type Node struct{ conn *rtnl.Conn }

// OpenNode opens a socket into the node's namespace.
func OpenNode() (*Node, error) {
	conn, err := rtnl.Dial()
	return &Node{conn}, err
}

// Close closes the socket.
func (n *Node) Close() { n.conn.Close() }

// DeleteLink deletes a device by its name, which takes one message. That there is none is success.
func (n *Node) DeleteLink(name string) error { return deleteLink(n.conn, name) }

func deleteLink(conn *rtnl.Conn, name string) error {
	_, err := do(conn, request(unix.RTM_DELLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC), nameAttr(name)))
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

// getLink returns the device of that name and the kernel's message about it, nil if there is none.
func getLink(conn *rtnl.Conn, name string) (link netlink.Link, message []byte, err error) {
	req := request(unix.RTM_GETLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC), nameAttr(name))
	err = conn.List(req, func(m []byte) error {
		message = slices.Clone(m)
		link, err = netlink.LinkDeserialize(nil, message)
		return err
	})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return nil, nil, fmt.Errorf("look for %s: %w", name, err)
	}
	return link, message, nil
}

// do sends requests in one write and returns the first error, and which request's it is. ADD spends a tenth
// less than with a call of the library for each.
func do(conn *rtnl.Conn, requests ...*nl.NetlinkRequest) (int, error) {
	errs := conn.Do(requests...)
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return i, errs[i]
	}
	return 0, nil
}

func request(kind, flags int, header nl.NetlinkRequestData, attrs ...*nl.RtAttr) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.AddData(header)
	for _, a := range attrs {
		req.AddData(a)
	}
	return req
}

func nameAttr(name string) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)) }

// up returns the header of a message that sets a link up.
func up(index int) *nl.IfInfomsg {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index, msg.Flags, msg.Change = int32(index), unix.IFF_UP, unix.IFF_UP
	return msg
}

// writeSysctls skips what the kernel does not have: one without IPv6 has no IPv6 parameters.
func writeSysctls(all []netstate.Sysctl) error {
	for _, s := range all {
		now, err := os.ReadFile("/proc/sys/" + s.Name)
		if errors.Is(err, os.ErrNotExist) || string(now) == s.Value+"\n" {
			continue
		}
		if err := os.WriteFile("/proc/sys/"+s.Name, []byte(s.Value), 0o644); err != nil {
			return fmt.Errorf("set %s to %s: %w", s.Name, s.Value, err)
		}
	}
	return nil
}
