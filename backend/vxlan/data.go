package vxlan

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// data is flannel's backend-data annotation: {"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:ff"}.
type data struct {
	VNI     int
	VtepMAC string
}

// parseData reads a peer's backend-data.
func parseData(raw json.RawMessage) (vni int, mac netstate.MAC, err error) {
	var d data
	if err := json.Unmarshal(raw, &d); err != nil {
		return 0, mac, fmt.Errorf("its backend-data %q is not an object with VNI and VtepMAC", raw)
	}
	mac, err = netstate.ParseMAC(d.VtepMAC)
	if err != nil || !mac.IsUnicast() {
		return 0, mac, fmt.Errorf("its backend-data has the VtepMAC %q, want a unicast MAC address", d.VtepMAC)
	}
	return d.VNI, mac, nil
}

// vtepMAC is the address of this node's VTEP of one family: the one that peers know already, else the existing
// device's, else one made of the node's name, so that it survives a reboot without any memory.
func (b Backend) vtepMAC(node backend.Node, is4 bool) netstate.MAC {
	if stack, ok := node.Last.Stack(is4); ok {
		if vni, mac, err := parseData(stack.Data); err == nil && vni == b.options.VNI {
			return mac
		}
	}
	dev := b.device(is4)
	if mac := node.MACs[dev]; mac.IsUnicast() {
		return mac
	}
	var mac netstate.MAC
	sum := sha256.Sum256([]byte(node.Name + "/" + dev))
	copy(mac[:], sum[:])
	mac[0] = mac[0]&^1 | 2 // unicast, locally administered
	return mac
}
