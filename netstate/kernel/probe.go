package kernel

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// noName is a name that no device can have. Linux refuses it last (seen on 6.1 and 6.18): once it has the module, the file
// and the right to make a device. So nothing is made, and nobody hears of it.
const noName = "twill/0"

// CanMake returns why this kernel makes no devices of a wanted one's kind, nil if it does. It loads their module if there
// is one, and makes nothing.
func CanMake(want netstate.Object) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = noName
	var err error
	switch o := want.(type) {
	case netstate.VXLAN:
		err = netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: o.VNI, Port: o.Port})
	case netstate.Tunnel:
		if o.External {
			err = netlink.LinkAdd(&netlink.Ip6tnl{LinkAttrs: attrs, FlowBased: true})
		} else {
			err = netlink.LinkAdd(&netlink.Iptun{LinkAttrs: attrs, PMtuDisc: 1, Proto: unix.IPPROTO_IPIP})
		}
	case netstate.WireGuard:
		err = netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	case netstate.Tun:
		err = tryTun()
	}
	// What refuses a device of this name, or one more of the kind, knows the kind.
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EEXIST) {
		return nil
	}
	return explainLink(want, err)
}

// tryTun asks for a TUN device that cannot be.
func tryTun() error {
	const path = "/dev/net/tun"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	ifr, err := unix.NewIfreq(noName)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
