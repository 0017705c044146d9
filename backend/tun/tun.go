// Package tun opens the TUN devices that the reconciler made, for backends that move packets themselves.
package tun

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

const path = "/dev/net/tun"

// iffPersist is IFF_PERSIST of linux/if_tun.h: the device outlives the process.
const iffPersist = 0x0800

// Headroom is what a packet that is written must have before it, in bytes: the virtio-net header (linux/virtio_net.h).
const Headroom = 16

// ErrMissing says that there is no such device: the reconciler has not made it yet, or it was deleted.
var ErrMissing = errors.New("there is no such device")

// Open attaches to the device, with checksum and segmentation offloads. A device that is not there stays away: one that
// this process made would vanish with it, and all routes through it. Reads of the device fail with os.ErrClosed when it
// is deleted.
func Open(name string) (tun.Device, error) {
	fd, err := attach(name)
	if err != nil {
		return nil, fmt.Errorf("open the TUN device %s: %w", name, err)
	}
	dev, _, err := tun.CreateUnmonitoredTUNFromFD(fd)
	if err != nil {
		return nil, errors.Join(
			fmt.Errorf("set the offloads of the TUN device %s: %w", name, err),
			ignoreClosed(unix.Close(fd)),
		)
	}
	return dev, nil
}

func attach(name string) (fd int, err error) {
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err := setDevice(fd, name); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func setDevice(fd int, name string) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("another process has it open: %w", err)
		}
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr); err != nil {
		return err
	}
	if ifr.Uint16()&iffPersist == 0 {
		return ErrMissing // this descriptor has just made it, and closing takes it away again
	}
	return nil
}

// ignoreClosed: the library may have closed the descriptor already.
func ignoreClosed(err error) error {
	if errors.Is(err, unix.EBADF) {
		return nil
	}
	return err
}

// Alive reports whether dev is still attached. When a device is deleted, a waiting Read is not always woken
// (seen on 6.18): whoever learns that the kernel changed has to ask.
func Alive(dev tun.Device) error {
	conn, err := dev.File().SyscallConn()
	if err != nil {
		return err
	}
	failed := conn.Control(func(fd uintptr) {
		var ifr *unix.Ifreq
		if ifr, err = unix.NewIfreq(""); err == nil {
			err = unix.IoctlIfreq(int(fd), unix.TUNGETIFF, ifr)
		}
	})
	return errors.Join(failed, err)
}
