package netstate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Port is the host's end of a pod's veth pair: a port of the pods' bridge. Slot: its name. Mark: its ifalias, in which
// the CNI plugin notes how it made the port, so that it can be plugged in again after the bridge was made anew. A port
// comes and goes with its pod: Diff neither adds nor deletes one.
type Port struct {
	Name     string
	Bridge   string // empty: it is unplugged
	MTU      int
	MAC      MAC
	Pod      MAC  // of the pod's end, as the mark has it
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

// portMark begins the ifalias of pods' ports.
const portMark = Mark + " port of "

// Alias returns the ifalias of a port that is as p.
func (p Port) Alias() string {
	return portMark + words(p.Bridge, "mtu", strconv.Itoa(p.MTU), "address", p.MAC.String(), "pod", p.Pod.String(),
		p.options())
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
