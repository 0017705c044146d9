package unusual

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// fresh is what a network namespace has that nobody altered. It lives as long as the process, because devices are made
// in it when the first of their kind is compared.
type fresh struct {
	namespace int    // a file descriptor
	release   string // of the kernel that it was recorded on; empty: it is this kernel's
	rules     map[byte][]string
	sysctls   map[string]parameter // by path below /proc/sys/net, without those of devices
	lo        sample
	untold    []string // sysctls of a device that are in no message

	mu      sync.Mutex
	samples map[string]sample // by kind of device
}

// sample is a device of which nobody altered anything.
type sample struct {
	link    link
	port    link // a device of its kind that is plugged into a bridge
	sysctls map[string]parameter
	err     error
}

var reference = sync.OnceValues(makeReference)

// elsewhere runs do on a thread of its own, which ends with it.
func elsewhere(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		done <- do()
	}()
	return <-done
}

func makeReference() (*fresh, error) {
	f := &fresh{rules: map[byte][]string{}, samples: map[string]sample{}}
	err := elsewhere(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace to compare with: %w", err)
		}
		path := "/proc/self/task/" + strconv.Itoa(unix.Gettid()) + "/ns/net"
		if f.namespace, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		return f.read()
	})
	if errors.Is(err, unix.EPERM) {
		return replay()
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// read notes what the namespace has before there is any device but lo.
func (f *fresh) read() error {
	s, err := open()
	if err != nil {
		return err
	}
	defer s.conn.Close()
	for _, family := range families {
		rules, err := s.rules(family)
		if err != nil {
			return err
		}
		for _, r := range rules {
			f.rules[family] = append(f.rules[family], r.text())
		}
	}
	f.lo.link = s.byName("lo")
	f.lo.sysctls = deviceSysctls("lo")
	for _, l := range s.links {
		if l.name != "lo" { // that each namespace has: tunl0
			f.samples[l.name] = sample{link: l, port: l, sysctls: deviceSysctls(l.name)}
		}
	}
	f.sysctls = namespaceSysctls()
	const gauge = "gauge"
	if s.makeLink(gauge, "veth") == nil { // else there is nothing to be told apart
		f.untold = s.untold(gauge, deviceSysctls(gauge))
	}
	return nil
}

// like returns a device to compare with: the one that each namespace has by this name, or one of the same kind.
// Hardware is compared with a veth, and so is what cannot be made.
func (f *fresh) like(name, kind string) sample {
	f.mu.Lock()
	defer f.mu.Unlock()
	if name == "lo" {
		return f.lo
	}
	if s, ok := f.samples[name]; ok {
		return s
	}
	if kind == "" {
		kind = "veth"
	}
	s, ok := f.samples[kind]
	if !ok {
		s = f.sample(kind)
		if s.err != nil && kind != "veth" {
			f.mu.Unlock()
			s = f.like("", "veth")
			f.mu.Lock()
		}
		f.samples[kind] = s
	}
	return s
}

// sample makes a device.
func (f *fresh) sample(kind string) (made sample) {
	if f.release != "" {
		return sample{err: fmt.Errorf("no device of kind %s is recorded", kind)}
	}
	made.err = elsewhere(func() error {
		if err := unix.Setns(f.namespace, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace to compare with: %w", err)
		}
		s, err := open()
		if err != nil {
			return err
		}
		defer s.conn.Close()
		name := fmt.Sprintf("sample%d", len(s.links))
		if err := s.makeLink(name, kind); err != nil {
			return err
		}
		if err := s.readLinks(); err != nil {
			return err
		}
		made.link, made.sysctls = s.byName(name), deviceSysctls(name)
		return s.plug(&made)
	})
	return made
}

// makeLink makes a device and sets it up.
func (s *space) makeLink(name, kind string) error {
	if kind == "tun" {
		tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN}
		if err := netlink.LinkAdd(tun); err != nil {
			return fmt.Errorf("make a device of kind %s to compare with: %w", kind, err)
		}
	} else if err := s.makeVirtual(name, kind); err != nil {
		return fmt.Errorf("make a device of kind %s to compare with: %w", kind, err)
	}
	if err := s.readLinks(); err != nil {
		return err
	}
	for _, l := range s.links {
		if l.name != name && l.name != name+"p" {
			continue
		}
		r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		r.AddData(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: int32(l.index), Flags: unix.IFF_UP, Change: unix.IFF_UP}})
		if errs := s.conn.Do(r); errs != nil {
			return fmt.Errorf("set up a device of kind %s to compare with: %w", kind, errs[0])
		}
	}
	return nil
}

func (s *space) makeVirtual(name, kind string) error {
	r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(kind))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	switch kind {
	case "veth":
		peer := data.AddRtAttr(nl.VETH_INFO_PEER, make([]byte, unix.SizeofIfInfomsg))
		peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name+"p"))
	case "vxlan":
		data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(uint32(len(s.links))))
	case "vlan", "macvlan", "macvtap", "ipvlan", "ipvtap":
		if err := s.makeVirtual(name+"b", "bridge"); err != nil {
			return err
		}
		if err := s.readLinks(); err != nil {
			return err
		}
		r.AddData(nl.NewRtAttr(unix.IFLA_LINK, nl.Uint32Attr(uint32(s.byName(name+"b").index))))
		if kind == "vlan" {
			data.AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(1))
		}
	}
	r.AddData(info)
	if errs := s.conn.Do(r); errs != nil {
		return errs[0]
	}
	return nil
}

// plug notes how a device is when it is a bridge's port, if there can be bridges.
func (s *space) plug(made *sample) error {
	if made.link.kind == "bridge" {
		return nil
	}
	if made.port = made.link; s.byName("sampleb").index == 0 {
		if s.makeVirtual("sampleb", "bridge") != nil {
			return nil // a kernel without bridges has no ports
		}
		if err := s.readLinks(); err != nil {
			return err
		}
	}
	r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	r.AddData(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: int32(made.link.index)}})
	r.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(s.byName("sampleb").index))))
	if s.conn.Do(r) != nil {
		return nil // of a kind that no bridge takes
	}
	if err := s.readLinks(); err != nil {
		return err
	}
	made.port = s.byName(made.link.name)
	return nil
}
