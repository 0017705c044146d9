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
	prints, err := s.neighbourSettings()
	for _, l := range s.links {
		prints[l.index] += fmt.Sprintf("%s %d %s", l.kind, l.mtu, l.settings())
	}
	return prints, err
}

// settings returns what a link's message has of net.ipv4.conf and net.ipv6.conf.
func (l link) settings() string {
	inet, inet6 := l.Attribute(unix.IFLA_AF_SPEC, unix.AF_INET), l.Attribute(unix.IFLA_AF_SPEC, unix.AF_INET6)
	return string(rtnl.Attribute(inet, 0, inetConf)) + string(rtnl.Attribute(inet6, 0, inet6Conf)) +
		string(rtnl.Attribute(inet6, 0, addrGenMode))
}

// neighbourSettings returns what the kernel tells of net.ipv4.neigh and net.ipv6.neigh, by index of the device.
func (s *space) neighbourSettings() (map[int]string, error) {
	settings := map[int]string{}
	const size = 4 // of struct ndtmsg
	messages, err := s.list("neighbour tables", unix.RTM_GETNEIGHTBL, nl.NewIfInfomsg(unix.AF_UNSPEC))
	for _, m := range messages {
		text, index := []byte{m[0]}, 0
		for kind, value := range rtnl.Attributes(rtnl.Attribute(m, size, tableParameters)) {
			switch kind {
			case parameterDevice:
				index = int(rtnl.Number(value))
			case parameterUses, parameterNow:
			default:
				text = append(append(text, byte(kind)), value...)
			}
		}
		if index != 0 {
			settings[index] += string(text)
		}
	}
	return settings, err
}

// untold returns the sysctls of a device that do not show in its fingerprint: each is altered, and looked for. What
// cannot be altered is taken for one of them.
func (s *space) untold(device string, all map[string]parameter) (names []string) {
	index := s.byName(device).index
	look := func(name string) (settings string) {
		if path.Base(path.Dir(name)) == "neigh" {
			all, _ := s.neighbourSettings()
			return all[index]
		}
		_ = s.conn.List(oneLink(index), func(m []byte) error {
			l, err := parseLink(m)
			settings = l.settings()
			return err
		})
		return settings
	}
	for name, p := range all {
		file, before := procSysNet+path.Join(path.Dir(name), device, path.Base(name)), look(name)
		if !p.can || os.WriteFile(file, []byte(opposite(p.value)), 0) != nil || look(name) == before {
			names = append(names, name)
		}
		_ = os.WriteFile(file, []byte(p.value), 0)
	}
	return names
}
