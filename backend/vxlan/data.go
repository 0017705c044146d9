package vxlan

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// data is flannel's backend-data annotation, and the UDP port, which flannel ignores:
// {"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:ff","Port":8472}.
type data struct {
	VNI     int
	VtepMAC string
	Port    int `json:",omitempty"` // 0: flannel does not say, and older agents did not
}

// parseData reads a peer's backend-data. With an error the VNI is 0, which no network has.
func parseData(raw json.RawMessage) (d data, mac netstate.MAC, err error) {
	if err := json.Unmarshal(raw, &d); err != nil {
		return data{}, mac, fmt.Errorf("its backend-data %.80q is not an object with VNI and VtepMAC", raw)
	}
	mac, err = netstate.ParseMAC(d.VtepMAC)
	if err != nil || !mac.IsUnicast() {
		return data{}, mac, fmt.Errorf("its backend-data has the VtepMAC %.80q, want a unicast MAC address", d.VtepMAC)
	}
	return d, mac, nil
}

// Speaks reports whether packets reach a VTEP of which this is the backend-data: it has this VNI, and no other port.
func (b Backend) Speaks(raw json.RawMessage) bool {
	d, _, err := parseData(raw)
	return err == nil && d.VNI == b.options.VNI && (d.Port == 0 || d.Port == b.options.Port)
}

// Claims implements backend.Claimer: a VTEP's MAC address.
func (b Backend) Claims(stack subnet.Stack) []string {
	d, mac, _ := parseData(stack.Data)
	if d.VNI != b.options.VNI {
		return nil
	}
	return []string{vtep{stack.Family(), mac}.String()}
}

// String is kept in checkpoints.
func (v vtep) String() string { return fmt.Sprint(v.mac, " ", v.family == netstate.IPv4) }

// vtepMAC is the address of this node's VTEP of one family: the one that peers know already, else the existing
// device's, else one made of the node's name, so that it survives a reboot without any memory.
func (b Backend) vtepMAC(node backend.Node, last subnet.Lease, f netstate.Family) netstate.MAC {
	if stack, ok := last.Stack(f); ok {
		if d, mac, _ := parseData(stack.Data); d.VNI == b.options.VNI {
			return mac
		}
	}
	if mac := node.MACs[b.device(f)]; mac.IsUnicast() {
		return mac
	}
	return b.namedMAC(node.Name, f)
}

// namedMAC is the address that a node's name makes.
func (b Backend) namedMAC(name string, f netstate.Family) netstate.MAC {
	var mac netstate.MAC
	sum := sha256.Sum256([]byte(name + "/" + b.device(f)))
	copy(mac[:], sum[:])
	mac[0] = mac[0]&^1 | 2 // unicast, locally administered
	return mac
}
