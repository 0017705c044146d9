package unusual

import (
	"fmt"
	"os"
	"path"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
)

// Attributes of linux/if_link.h and linux/neighbour.h.
const (
	inetConf, inet6Conf, addrGenMode = 1, 2, 8
	tableParameters                  = 6
	parameterDevice, parameterUses   = 1, 2
	parameterNow                     = 3 // a random time, drawn anew every few minutes
)

// fingerprints returns by index a text for each device, equal for two that have the same sysctls but for those that are
// untold. It holds the values that the kernel tells in two messages, where files of them would be a hundred a device.
func (s *space) fingerprints() (map[int]string, error) {
	prints := map[int]string{}
	for _, l := range s.links {
		inet, inet6 := l.attribute(unix.IFLA_AF_SPEC, unix.AF_INET), l.attribute(unix.IFLA_AF_SPEC, unix.AF_INET6)
		prints[l.index] = fmt.Sprintf("%s %d %x %x %x", l.kind, l.mtu, rtnl.Attribute(inet, 0, inetConf),
			rtnl.Attribute(inet6, 0, inet6Conf), rtnl.Attribute(inet6, 0, addrGenMode))
	}
	const size = 4 // of struct ndtmsg
	messages, err := s.list("neighbour tables", unix.RTM_GETNEIGHTBL, nl.NewIfInfomsg(unix.AF_UNSPEC))
	for _, m := range messages {
		parameters, text, index := rtnl.Attribute(m, size, tableParameters), "", 0
		for kind, value := range rtnl.Attributes(parameters) {
			switch kind {
			case parameterDevice:
				index = int(number(value))
			case parameterUses, parameterNow:
			default:
				text += fmt.Sprintf(" %d=%x", kind, value)
			}
		}
		if index != 0 {
			prints[index] += fmt.Sprintf(" family %d%s", m[0], text)
		}
	}
	return prints, err
}

// untold returns the sysctls of a device that do not show in its fingerprint: each is altered, and looked for. What
// cannot be altered is taken for one of them.
func (s *space) untold(device string, all map[string]parameter) (names []string) {
	index := s.byName(device).index
	look := func() string {
		if s.readLinks() != nil {
			return ""
		}
		prints, _ := s.fingerprints()
		return prints[index]
	}
	before := look()
	for name, p := range all {
		file := procSysNet + path.Join(path.Dir(name), device, path.Base(name))
		if !p.can || os.WriteFile(file, []byte(opposite(p.value)), 0) != nil || look() == before {
			names = append(names, name)
		}
		_ = os.WriteFile(file, []byte(p.value), 0)
		before = look()
	}
	return names
}
