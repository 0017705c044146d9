package doctor

import (
	"fmt"
	"reflect"

	"github.com/twill-net/twill/netstate"
)

// link is what a change of a device means.
func (d drift) link(c netstate.Change) (Finding, bool) {
	name := c.Key().Name
	if c.Want == nil {
		return evidence("leftover-entries", name, c, "ip link del "+name), true
	}
	if id, fix := linkChange(c); id != "" {
		return evidence(id, name, c, fix), true
	}
	return Finding{}, false
}

func linkChange(c netstate.Change) (id, fix string) {
	switch want := c.Want.(type) {
	case netstate.VXLAN:
		return vxlanChange(want, c.Was)
	case netstate.Bridge:
		return bridgeChange(want, c.Was)
	case netstate.Tun, netstate.Tunnel, netstate.WireGuard:
		return overlayChange(c)
	}
	return "", ""
}

// overlayChange is about devices that have no MAC address: they are missing, down, another's, or altered otherwise.
func overlayChange(c netstate.Change) (id, fix string) {
	name := c.Key().Name
	switch {
	case c.Was == nil:
		return "vtep-missing", ""
	case reflect.TypeOf(c.Was) != reflect.TypeOf(c.Want):
		return "device-foreign", "ip link del " + name
	case !isUp(c.Was):
		return "vtep-down", fmt.Sprintf("ip link set %s up", name)
	case mtuOf(c.Was) != mtuOf(c.Want):
		return "vtep-mtu", fmt.Sprintf("ip link set %s mtu %d", name, mtuOf(c.Want))
	}
	return "vtep-altered", ""
}

// mtuOf is a device's, in bytes, 0 for what has none.
func mtuOf(o netstate.Object) int {
	switch l := o.(type) {
	case netstate.Tun:
		return l.MTU
	case netstate.Tunnel:
		return l.MTU
	case netstate.WireGuard:
		return l.MTU
	}
	return 0
}

func vxlanChange(want netstate.VXLAN, was netstate.Object) (id, fix string) {
	have, ok := was.(netstate.VXLAN)
	switch {
	case was == nil:
		return "vtep-missing", ""
	case !ok || have.VNI != want.VNI:
		return "device-foreign", "ip link del " + want.Name
	case !have.Up:
		return "vtep-down", fmt.Sprintf("ip link set %s up", want.Name)
	case have.MAC != want.MAC:
		return "vtep-mac", fmt.Sprintf("ip link set %s address %s", want.Name, want.MAC)
	case !netstate.SameDevice(have, want):
		return "vtep-altered", ""
	case have.MTU != want.MTU:
		return "vtep-mtu", fmt.Sprintf("ip link set %s mtu %d", want.Name, want.MTU)
	}
	return "vtep-altered", ""
}

func bridgeChange(want netstate.Bridge, was netstate.Object) (id, fix string) {
	have, ok := was.(netstate.Bridge)
	switch {
	case was == nil:
		return "bridge-missing", ""
	case !ok:
		return "device-foreign", "ip link del " + want.Name
	case !have.Up:
		return "bridge-down", fmt.Sprintf("ip link set %s up", want.Name)
	case have.MTU != want.MTU:
		return "bridge-mtu", fmt.Sprintf("ip link set %s mtu %d", want.Name, want.MTU)
	}
	return "bridge-altered", ""
}
