package plugin

import (
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// port is how the bridge treats a pod's port.
type port struct {
	host     string
	hairpin  bool // a pod that calls a service and is chosen itself gets its packets back
	isolated bool // it does not talk to other isolated ports
	checkMAC bool // frames with another source address than the pod's are dropped
}

// special says whether the port is another than the kernel makes.
func (p port) special() bool { return p.hairpin || p.isolated || p.checkMAC }

// lock ends what request began for a port that checks source addresses. That is a locked port (Linux 5.18): it takes
// frames only from hardware addresses that the bridge has on it, and it learns none, so that the pod's own, written
// here, stays the only one. No firewall is involved.
func (p port) lock(host *rtnl, pod netstate.MAC) error {
	link, err := host.link(p.host)
	if err == nil && link == nil {
		err = unix.ENODEV
	}
	if err == nil {
		err = netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE,
			State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER, HardwareAddr: pod[:]})
	}
	if err != nil {
		return fmt.Errorf("tell the bridge that %s is at %s: %w", pod, p.host, err)
	}
	locked, err := p.locked(host)
	if err == nil && !locked { // an older kernel passes over what it does not know
		err = fmt.Errorf("macspoofchk: this kernel has no locked ports, want Linux 5.18 or the setting off")
	}
	return err
}

func (p port) request() *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(p.host)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
	if p.hairpin {
		data.AddRtAttr(nl.IFLA_BRPORT_MODE, []byte{1})
	}
	if p.isolated {
		data.AddRtAttr(nl.IFLA_BRPORT_ISOLATED, []byte{1})
	}
	if p.checkMAC {
		data.AddRtAttr(nl.IFLA_BRPORT_LEARNING, []byte{0})
		data.AddRtAttr(nl.IFLA_BRPORT_LOCKED, []byte{1})
	}
	req.AddData(info)
	return req
}

// locked reads back whether the port is locked.
func (p port) locked(host *rtnl) (bool, error) {
	message, err := host.linkMessage(p.host)
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", p.host, err)
	}
	data := message[unix.SizeofIfInfomsg:]
	for _, kind := range []uint16{unix.IFLA_LINKINFO, nl.IFLA_INFO_SLAVE_DATA, nl.IFLA_BRPORT_LOCKED} {
		if data, err = attribute(data, kind); err != nil {
			return false, fmt.Errorf("look at %s: %w", p.host, err)
		}
	}
	return len(data) > 0 && data[0] == 1, nil
}

// attribute is the value of one attribute in data, empty if there is none.
func attribute(data []byte, kind uint16) ([]byte, error) {
	attrs, err := nl.ParseRouteAttr(data)
	if err != nil {
		return nil, err
	}
	for _, a := range attrs {
		if a.Attr.Type&^syscall.NLA_F_NESTED == kind {
			return a.Value, nil
		}
	}
	return nil, nil
}
