package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/procfs"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Holder is what has the UDP port of a VXLAN device that cannot be up.
type Holder struct {
	Text   string // for people; empty: nothing has it, or only devices that share it
	Device string // the VXLAN device that it is; empty: it is none of this namespace
}

// PortHolder finds what has the UDP port of a VXLAN device.
func (k *Kernel) PortHolder(want netstate.VXLAN) Holder { return portHolder(k.nl, want) }

// portHolder looks at the sockets of the calling thread's namespace. A socket of the other family counts if a process has
// it, because it may be for both families; if no process has it, it is the kernel's own, for the other family's device.
func portHolder(nl *netlink.Handle, want netstate.VXLAN) Holder {
	const local, inode = 1, 9 // columns
	for _, table := range []struct {
		name   string
		family netstate.Family
	}{{"udp", netstate.IPv4}, {"udp6", netstate.IPv6}} {
		data, _ := os.ReadFile("/proc/thread-self/net/" + table.name) // /proc/net is the main thread's
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) <= inode || !strings.HasSuffix(f[local], fmt.Sprintf(":%04X", want.Port)) || f[inode] == "0" {
				continue
			}
			says := func(what string) string { return fmt.Sprintf("UDP port %d is held by %s", want.Port, what) }
			if process := socketHolder(f[inode]); process != "" {
				return Holder{Text: says(process)}
			}
			if table.family != netstate.FamilyOf(want.Local) {
				continue
			}
			dev, others := rival(nl, want)
			switch {
			case dev != "":
				return Holder{Text: says("the VXLAN device " + dev), Device: dev}
			case !others:
				return Holder{Text: says("a process, or a device of another namespace, that is not seen from here (socket " + f[inode] + ")")}
			}
		}
	}
	return Holder{}
}

// rival returns another VXLAN device with the port that does not share it, and whether there are others that do. The
// kernel has one socket for all that take packets in the same way, and one device for each VNI.
func rival(nl *netlink.Handle, want netstate.VXLAN) (dev string, others bool) {
	links, _ := rtnl.Retry("links", nl.LinkList)
	for _, l := range links {
		v, ok := l.(*netlink.Vxlan)
		if !ok || v.Port != want.Port || v.Name == want.Name || v.RawFlags&unix.IFF_UP == 0 {
			continue
		}
		if v.FlowBased || v.GBP != want.GBP || v.VxlanId == want.VNI {
			return v.Name, true
		}
		others = true
	}
	return "", others
}

// socketHolder returns the process with a socket, empty if none is seen.
func socketHolder(inode string) string {
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == "socket:["+inode+"]" {
			dir := filepath.Dir(filepath.Dir(fd))
			name, _ := procfs.Read(dir + "/comm")
			return fmt.Sprintf("%s (process %s)", name, filepath.Base(dir))
		}
	}
	return ""
}
