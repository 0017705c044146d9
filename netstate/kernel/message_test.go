package kernel

import "github.com/mdlayher/netlink"

// message is a notice of the kernel.
func message(kind uint16, data []byte) netlink.Message {
	return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(kind)}, Data: data}
}
