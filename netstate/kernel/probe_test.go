package kernel

import (
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// kinds are a device of each kind.
func kinds() []netstate.Object {
	return []netstate.Object{
		netstate.VXLAN{Name: "v1", VNI: 1, Port: 8472, Dev: "lo", Local: netip.MustParseAddr("127.0.0.1"), MTU: 1450},
		netstate.Tun{Name: "t1", MTU: 1400},
		netstate.Tunnel{Name: "i1", Local: netip.MustParseAddr("127.0.0.1"), MTU: 1400},
		netstate.Tunnel{Name: "i2", External: true, MTU: 1400},
		netstate.WireGuard{Name: "w1", MTU: 1400},
	}
}

// TestCanMake: the kernel makes a device exactly if it says so before, also beside one of the kind, and to ask makes none.
func TestCanMake(t *testing.T) {
	for _, want := range kinds() {
		k := fresh(t).Kernel.(*Kernel)
		before, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		says := CanMake(want)
		after, err := netlink.LinkList()
		if err != nil || len(after) != len(before) {
			t.Errorf("%s: there were %d devices, and are %d: %v", want, len(before), len(after), err)
		}
		does := k.Apply(t.Context(), netstate.Plan{{Want: want}})
		if (says == nil) != (does == nil) {
			t.Errorf("%s: the kernel says %v, and does %v", want, says, does)
		}
		if says != nil && (errors.Unwrap(says) == nil || !strings.Contains(does.Error(), says.Error())) {
			t.Errorf("%s: the reason was %q, and is %q", want, says, does)
		}
		if does == nil && CanMake(want) != nil {
			t.Errorf("%s, a second time: %v", want, CanMake(want))
		}
	}
}

// TestCanMakeTun: without its file, or without a module behind it, there is no TUN device.
func TestCanMakeTun(t *testing.T) {
	runtime.LockOSThread() // the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", "/dev/net", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	tun := netstate.Tun{Name: "t1", MTU: 1400}
	if err := CanMake(tun); !errors.Is(err, unix.ENOENT) || err.Error() != "make the TUN device t1 by /dev/net/tun: open /dev/net/tun: no such file or directory" {
		t.Errorf("without the file: %v", err)
	}
	if err := unix.Mknod("/dev/net/tun", unix.S_IFCHR|0o600, int(unix.Mkdev(240, 77))); err != nil {
		t.Fatal(err)
	}
	if err := CanMake(tun); !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.ENODEV) {
		t.Errorf("without a driver: %v", err)
	}
}
