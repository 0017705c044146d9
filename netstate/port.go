package netstate

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Port is the host's end of a pod's veth pair: a port of the pods' bridge. Slot: its name. Mark: its ifalias, in which
// the CNI plugin notes how it made the port, so that it can be plugged in again after the bridge was made anew. A port
// comes and goes with its pod: Diff neither adds nor deletes one.
type Port struct {
	Name   string
	Bridge string // empty: it is unplugged
	MTU    int
	MAC    MAC
	Pod    MAC // of the pod's end, as the mark has it
	// Addrs is the pod's addresses, as the mark has them, with spaces between them. A port that has some is in PortGroup;
	// one without is an older plugin's.
	Addrs    string
	Hairpin  bool // frames may leave through the port that they came from
	Isolated bool // no frames to and from other isolated ports
	Locked   bool // frames only from addresses that the bridge was told, and no learning
	Up       bool
	Extra    string
}

// Key implements Object.
func (p Port) Key() Key { return Key{Kind: KindPort, Name: p.Name} }

func (p Port) String() string {
	bridge := "unplugged"
	if p.Bridge != "" {
		bridge = "master " + p.Bridge
	}
	return words("port", p.Name, bridge, "mtu", strconv.Itoa(p.MTU), "address", p.MAC.String(), p.options(), updown(p.Up),
		p.Extra)
}

func (p Port) options() string {
	return words(flag(p.Hairpin, "hairpin"), flag(p.Isolated, "isolated"), flag(p.Locked, "locked"))
}

// PortGroup is the group of devices (IFLA_GROUP) that the CNI plugin makes pods' ports in, so that rules know them before
// anybody else does.
const PortGroup = 116

// Unmarked is the Extra of a port that has lost its mark, so that the rest of it is what was known before.
const Unmarked = "without its mark"

const (
	portMark   = Mark + " port of " // begins the ifalias of pods' ports
	addrsMark  = "addrs"            // stands before the addresses
	aliasLimit = 255                // bytes
)

// WithAddrs returns the port with a pod's addresses, or without any if its mark has no room for them.
func (p Port) WithAddrs(addrs []netip.Addr) Port {
	texts := make([]string, 0, len(addrs))
	for _, a := range addrs {
		texts = append(texts, a.String())
	}
	if p.Addrs = strings.Join(texts, " "); len(p.Alias()) > aliasLimit {
		p.Addrs = ""
	}
	return p
}

// Addresses returns the pod's addresses.
func (p Port) Addresses() []netip.Addr {
	var all []netip.Addr
	for _, text := range strings.Fields(p.Addrs) {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// Group returns the group that the port has to be in; any will do if it is 0.
func (p Port) Group() int {
	if p.Addrs == "" {
		return 0
	}
	return PortGroup
}

// Alias returns the ifalias of a port that is as p.
func (p Port) Alias() string {
	return portMark + words(p.Bridge, "mtu", strconv.Itoa(p.MTU), "address", p.MAC.String(), "pod", p.Pod.String(),
		p.options(), prefixed(addrsMark+" ", p.Addrs))
}

// ParsePort returns the port as the plugin made it, and reports whether the ifalias is the mark of one.
func ParsePort(name, alias string) (Port, bool) {
	rest, ok := strings.CutPrefix(alias, portMark)
	w := strings.Fields(rest)
	if !ok || len(w) < 7 {
		return Port{}, false
	}
	p := Port{Name: name, Bridge: w[0], Hairpin: slices.Contains(w, "hairpin"), Isolated: slices.Contains(w, "isolated"),
		Locked: slices.Contains(w, "locked"), Up: true}
	p.MTU, _ = strconv.Atoi(w[2])
	p.MAC, _ = ParseMAC(w[4])
	p.Pod, _ = ParseMAC(w[6])
	if i := slices.Index(w, addrsMark); i > 0 {
		p.Addrs = strings.Join(w[i+1:], " ")
	}
	return p, p.Alias() == alias // else somebody else wrote it
}

// BridgeFDB is a forwarding entry of the pods' bridge for the address of a pod, which somebody wrote: those that the
// bridge learned are nobody's. Slot: bridge and address. Wanted is the one of a Locked port; others lead astray.
type BridgeFDB struct {
	Bridge string
	MAC    MAC
	Port   string // the bridge itself: frames go to the node
	Local  bool   // "permanent": as if the address were the port's own
}

// Key implements Object.
func (f BridgeFDB) Key() Key { return Key{Kind: KindFDB, Name: f.Bridge, MAC: f.MAC} }

func (f BridgeFDB) String() string {
	kind := "static"
	if f.Local {
		kind = "permanent"
	}
	return fmt.Sprintf("fdb %s dev %s master %s %s", f.MAC, f.Port, f.Bridge, kind)
}
