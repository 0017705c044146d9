package kernel

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// offloads is the Provider of netstate.Offload. rtnetlink does not carry these features, and ethtool's netlink family is
// younger (5.8) than the oldest kernel that Twill runs on, so it asks by ioctl.
type offloads struct{ fd int } // a socket in the namespace

func openOffloads() (*offloads, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket for the offloads of devices: %w", err)
	}
	return &offloads{fd}, nil
}

func (o *offloads) close() { _ = unix.Close(o.fd) } // nothing was written to it

// Writes implements Provider.
func (o *offloads) Writes(k netstate.Kind) bool { return k == netstate.KindOffload }

// Observe implements Provider: like sysctls, only those that are wanted are read. Watch wants none and gets all.
func (o *offloads) Observe(devs map[string][]string, want netstate.State) (netstate.State, error) {
	state := netstate.State{}
	for _, dev := range devs["vxlan"] {
		if _, wanted := want[netstate.Key{Kind: netstate.KindOffload, Name: dev}]; want != nil && !wanted {
			continue
		}
		on, err := o.ethtool(dev, unix.ETHTOOL_GTXCSUM, 0)
		switch {
		case err == nil:
			state.Add(netstate.Offload{Dev: dev, On: on != 0})
		case !errors.Is(err, unix.ENODEV):
			return nil, fmt.Errorf("read the checksum offload of %s: %w", dev, err)
		}
	}
	return state, nil
}

// Apply implements Provider.
func (o *offloads) Apply(c netstate.Change) error {
	want, ok := c.Want.(netstate.Offload)
	if !ok {
		return fmt.Errorf("a %s cannot be deleted", c.Key().Kind)
	}
	value := uint32(0)
	if want.On {
		value = 1
	}
	_, err := o.ethtool(want.Dev, unix.ETHTOOL_STXCSUM, value)
	return err
}

// ethtool makes a request about one number. Of a VXLAN device, ETHTOOL_GTXCSUM and ETHTOOL_STXCSUM are about
// tx-checksum-ip-generic: it has no other such feature.
func (o *offloads) ethtool(dev string, command, value uint32) (uint32, error) {
	data := struct{ command, value uint32 }{command, value} // struct ethtool_value
	request := struct {                                     // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&data)}
	copy(request.name[:unix.IFNAMSIZ-1], dev)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(o.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return 0, errno
	}
	return data.value, nil
}
