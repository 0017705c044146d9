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

// Exhausted returns what the machine has run out of, if the kernel's reason for a drop (enum skb_drop_reason) means just one
// thing: the parameter that limits it, its value, and how much is in use. function is the kernel's that dropped the packet,
// and v6 says that it is one of IPv6. The parameters are the machine's, whatever namespace it dropped the packet in.
func Exhausted(reason, function string, v6 bool) (o locate.Object, ok bool) {
	family := "ipv4"
	if v6 {
		family = "ipv6"
	}
	switch reason {
	case "NEIGH_CREATEFAIL":
		most, used := neighbourTable(v6)
		return limit("net/"+family+"/neigh/default/gc_thresh3", most, fmt.Sprintf("the neighbour table has %d entries", used)), true
	case "PROTO_MEM":
		protocol := "udp"
		if strings.Contains(function, "tcp") {
			protocol = "tcp"
		}
		name := "net/ipv4/" + protocol + "_mem"
		value, _, _ := readParameter(strings.TrimPrefix(name, "net/"))
		return limit(name, last(value), fmt.Sprintf("%s has %s pages of memory", strings.ToUpper(protocol), pages(protocol))), true
	case "CPU_BACKLOG":
		value, _, _ := readParameter("core/netdev_max_backlog")
		return limit("net/core/netdev_max_backlog", last(value), "a processor has as many packets waiting"), true
	}
	return locate.Object{}, false
}

// limit returns the object that a parameter is. Another namespace than the machine's first does not have it, and its value
// may not be known.
func limit(file string, most uint64, used string) locate.Object {
	name := "net." + swapDots.Replace(strings.TrimPrefix(file, "net/"))
	o := locate.Object{Kind: locate.Sysctl, Part: name, Text: name + ": " + used, Usual: "room for more"}
	if most == 0 {
		return o
	}
	o.Value = strconv.FormatUint(most, 10)
	o.Text = fmt.Sprintf("%s = %d: %s", name, most, used)
	if unix.Access("/proc/sys/"+file, unix.W_OK) == nil && !strings.HasSuffix(name, "_mem") {
		o.Fix = fmt.Sprintf("sysctl -w %s=%d", name, 4*most)
	}
	return o
}

// last returns the last number of a parameter, which of three is the hard limit.
func last(value string) uint64 {
	n, _ := strconv.ParseUint(value[strings.LastIndexByte(value, ' ')+1:], 10, 64)
	return n
}

// pages returns how many pages of memory the sockets of a protocol have, as /proc/net/sockstat says.
func pages(protocol string) string {
	text, _ := os.ReadFile("/proc/thread-self/net/sockstat")
	for line := range strings.Lines(string(text)) {
		if _, counts, ok := strings.Cut(line, strings.ToUpper(protocol)+": "); ok && strings.HasPrefix(line, strings.ToUpper(protocol)) {
			if _, mem, ok := strings.Cut(counts, "mem "); ok {
				return strings.TrimSpace(mem)
			}
		}
	}
	return "all"
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
