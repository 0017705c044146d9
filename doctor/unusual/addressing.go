package unusual

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
)

// loopback are the addresses that lo has.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("::1/128")}

// unusualAddresses returns addresses that lo should not have, or that two devices have, or that are not in use, and
// routes that should follow from an address and are gone.
func (s *space) unusualAddresses() (all []locate.Object, err error) {
	addresses, err := s.addresses()
	if err != nil {
		return nil, err
	}
	routes := map[byte][]route{}
	var errs error
	for _, family := range families {
		list, err := s.routesOf(family)
		routes[family], errs = list, errors.Join(errs, err)
	}
	for _, a := range addresses {
		if a.dev == "lo" && !slices.Contains(loopback, a.prefix) {
			all = append(all, a.object("", "not on lo"))
		}
		if other := a.elsewhere(addresses); other != "" && a.dev != "lo" {
			all = append(all, a.object(" (on "+other+", too)", "on one device"))
		}
		if flag := a.disuse(); flag != "" {
			o := a.object(" "+flag, "in use")
			o.Fix = fmt.Sprintf("ip addr replace %s/%d dev %s", a.local, a.prefix.Bits(), a.dev)
			if flag != "deprecated" { // it is tried again
				o.Fix = fmt.Sprintf("ip addr del %[1]s/%[2]d dev %[3]s && ip addr add %[1]s/%[2]d dev %[3]s", a.local,
					a.prefix.Bits(), a.dev)
			}
			all = append(all, o)
		}
		if s.byName(a.dev).flags&unix.IFF_UP != 0 && errs == nil {
			all = append(all, a.missingRoutes(routes[a.family])...)
		}
	}
	return append(all, s.missingAddresses(addresses)...), errs
}

// elsewhere returns the device that has the address, too, and with more right: with a subnet around it, or for longer.
func (a address) elsewhere(addresses []address) string {
	later := false
	for _, b := range addresses {
		switch {
		case b == a:
			later = true
		case b.local != a.local || b.dev == a.dev || b.dev == "lo" || a.local.IsLinkLocalUnicast():
		case b.prefix.Bits() < a.prefix.Bits(), b.prefix.Bits() == a.prefix.Bits() && !later:
			return b.dev
		}
	}
	return ""
}

// disuse returns the flag that keeps an address from being used.
func (a address) disuse() string {
	switch {
	case a.Flags&unix.IFA_F_DADFAILED != 0:
		return "dadfailed"
	case a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0:
		return "tentative"
	case a.Flags&unix.IFA_F_DEPRECATED != 0:
		return "deprecated"
	}
	return ""
}

// text returns the address as ip addr prints it, with its device.
func (a address) text() string {
	if a.local.Is4() {
		return fmt.Sprintf("inet %s/%d dev %s", a.local, a.prefix.Bits(), a.dev)
	}
	return fmt.Sprintf("inet6 %s/%d dev %s", a.local, a.prefix.Bits(), a.dev)
}

func (a address) object(more, usual string) locate.Object {
	return locate.Object{Kind: locate.Address, Dev: a.dev, Part: strings.TrimSpace(more), Text: a.text() + more, Usual: usual,
		Fix:   fmt.Sprintf("ip addr del %s/%d dev %s", a.local, a.prefix.Bits(), a.dev),
		About: netip.PrefixFrom(a.local, a.local.BitLen())}
}

// missingRoutes returns those that the kernel made for an address, and that somebody deleted.
func (a address) missingRoutes(routes []route) (all []locate.Object) {
	missing := func(what, fix string, about netip.Prefix) {
		all = append(all, locate.Object{Kind: locate.Address, Dev: a.dev, Part: "no route", Text: a.text() + ": no route " + what,
			Usual: what, Fix: fix, About: about})
	}
	has := func(kind byte, dst netip.Prefix) bool {
		return slices.ContainsFunc(routes, func(r route) bool {
			return r.dst == dst && r.kind == kind && (r.dev == a.dev || r.dev == "lo")
		})
	}
	host := netip.PrefixFrom(a.local, a.local.BitLen())
	pending := a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0
	if !pending && !has(unix.RTN_LOCAL, host) {
		missing("local "+a.local.String(), fmt.Sprintf("%s route add local %s dev %s table local proto kernel%s",
			tool(a.family), a.local, a.dev, a.scopeWords("host")), host)
	}
	connected := a.prefix.Masked()
	kind := byte(unix.RTN_UNICAST)
	if a.dev == "lo" {
		kind = unix.RTN_LOCAL
	}
	if connected.IsSingleIP() && connected == host || has(kind, connected) || pending {
		return all
	}
	words := fmt.Sprintf("%s dev %s proto kernel", connected, a.dev)
	if kind == unix.RTN_LOCAL {
		missing("local "+words, fmt.Sprintf("ip route add local %s table local%s", words, a.scopeWords("host")), connected)
		return all
	}
	missing(words, fmt.Sprintf("%s route add %s%s", tool(a.family), words, a.scopeWords("link")), connected)
	return all
}

// scopeWords returns how a route that follows from an address differs from one that somebody writes.
func (a address) scopeWords(scope string) string {
	switch {
	case a.local.Is4():
		return fmt.Sprintf(" scope %s src %s", scope, a.local)
	case scope == "link":
		return " metric 256"
	}
	return " metric 0"
}

// missingAddresses returns the addresses of lo that are gone.
func (s *space) missingAddresses(addresses []address) (all []locate.Object) {
	if s.byName("lo").flags&unix.IFF_UP == 0 {
		return nil
	}
	for _, p := range loopback {
		off, _, known := readParameter("ipv6/conf/lo/disable_ipv6")
		if p.Addr().Is6() && (!known || off == "1") ||
			slices.ContainsFunc(addresses, func(a address) bool { return a.dev == "lo" && a.local == p.Addr() }) {
			continue
		}
		all = append(all, locate.Object{Kind: locate.Address, Dev: "lo", Part: "no address",
			Text:  fmt.Sprintf("lo: no address %s", p),
			Usual: p.String(), Fix: fmt.Sprintf("ip addr add %s dev lo scope host", p),
			About: netip.PrefixFrom(p.Addr(), p.Addr().BitLen())})
	}
	return all
}
