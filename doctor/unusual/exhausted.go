package unusual

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// Exhausted returns what the machine has run out of, if the kernel's reason for a drop (enum skb_drop_reason) can mean that, and
// it has: the parameter that limits it, its value, and how much is in use. function is the kernel's that dropped the packet,
// and v6 says that it is one of IPv6. The parameters are the machine's, whatever namespace it dropped the packet in.
func Exhausted(reason, function string, v6 bool) (o locate.Object, ok bool) {
	switch reason {
	case "NEIGH_CREATEFAIL":
		most, used := neighbourTable(v6)
		return limit(version(v6)+"/neigh/default/gc_thresh3", most, used, "the neighbour table has %d entries")
	case "PROTO_MEM":
		protocol := "udp"
		if strings.Contains(function, "tcp") {
			protocol = "tcp"
		}
		value, _, _ := readParameter("ipv4/" + protocol + "_mem")
		return limit("ipv4/"+protocol+"_mem", last(value), pages(protocol), strings.ToUpper(protocol)+" has %d pages of memory")
	}
	return locate.Object{}, false
}

// nearly is the part of a limit, in percent, from which on something is used up: it may have been more when the packet came.
const nearly = 90

// limit returns the object that a parameter is, if nearly as much is in use. Only the machine's first namespace can set it.
func limit(file string, most, used uint64, text string) (o locate.Object, ok bool) {
	if most == 0 || used*100 < most*nearly {
		return o, false
	}
	o = sysctl(file, "", strconv.FormatUint(most, 10), strconv.FormatUint(4*most, 10))
	o.Text, o.Usual = o.Text+": "+fmt.Sprintf(text, used), "room for more"
	if unix.Access(procSysNet+file, unix.W_OK) != nil || strings.HasSuffix(file, "_mem") { // which has three numbers
		o.Fix = ""
	}
	return o, true
}

func version(v6 bool) string {
	if v6 {
		return "ipv6"
	}
	return "ipv4"
}

// last returns the last number of a parameter, which of three is the hard limit.
func last(value string) uint64 {
	n, _ := strconv.ParseUint(value[strings.LastIndexByte(value, ' ')+1:], 10, 64)
	return n
}

// pages returns how many pages of memory the sockets of a protocol have, as /proc/net/sockstat says.
func pages(protocol string) uint64 {
	text, _ := os.ReadFile("/proc/thread-self/net/sockstat")
	for line := range strings.Lines(string(text)) {
		counts, ok := strings.CutPrefix(line, strings.ToUpper(protocol)+": ")
		if _, mem, has := strings.Cut(counts, "mem "); ok && has {
			return last(strings.TrimSpace(mem))
		}
	}
	return 0
}

// neighbourTable returns how many entries the machine's neighbour table of a family may have, permanent ones not counted, and
// how many it has: NDTA_THRESH3 and ndt_config of linux/neighbour.h. Both are 0 if they cannot be read.
func neighbourTable(v6 bool) (most, used uint64) {
	const header, threshold3, config, entries = 4, 4, 5, 4 // struct ndtmsg, attributes, the place of ndtc_entries
	family := byte(unix.AF_INET)
	if v6 {
		family = unix.AF_INET6
	}
	conn, err := rtnl.Dial()
	if err != nil {
		return 0, 0
	}
	defer conn.Close()
	r := nl.NewNetlinkRequest(unix.RTM_GETNEIGHTBL, unix.NLM_F_DUMP)
	r.AddRawData([]byte{family, 0, 0, 0})
	_ = conn.List(r, func(m []byte) error {
		if len(m) < header || m[0] != family {
			return nil
		}
		if value := rtnl.Attribute(m, header, threshold3); value != nil {
			most = rtnl.Number(value)
		}
		if value := rtnl.Attribute(m, header, config); len(value) >= entries+4 {
			used = uint64(rtnl.Int(value[entries:]))
		}
		return nil
	})
	return most, used
}
