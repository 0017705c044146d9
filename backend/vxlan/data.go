package vxlan

import (
	"bytes"
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

// parseData reads a peer's backend-data. With an error the VNI is 0, which no network has.
func parseData(raw json.RawMessage) (vni int, mac netstate.MAC, err error) {
	if vni, mac, ok := parseUsual(raw); ok {
		return vni, mac, nil
	}
	var d data
	if err := json.Unmarshal(raw, &d); err != nil {
		return 0, mac, fmt.Errorf("its backend-data %.80q is not an object with VNI and VtepMAC", raw)
	}
	mac, err = netstate.ParseMAC(d.VtepMAC)
	if err != nil || !mac.IsUnicast() {
		return 0, mac, fmt.Errorf("its backend-data has the VtepMAC %.80q, want a unicast MAC address", d.VtepMAC)
	}
	return d.VNI, mac, nil
}

// parseUsual reads backend-data as flannel and Twill write it, to the letter. Thousands are read whenever a peer joins, and
// a JSON decoder would take a third of the time until its route stands.
func parseUsual(raw []byte) (vni int, mac netstate.MAC, ok bool) {
	raw, begins := bytes.CutPrefix(raw, []byte(`{"VNI":`))
	number, text, has := bytes.Cut(raw, []byte(`,"VtepMAC":"`))
	text, ends := bytes.CutSuffix(text, []byte(`"}`))
	if !begins || !has || !ends || len(number) == 0 || len(number) > 8 || number[0] == '0' {
		return 0, mac, false
	}
	for _, c := range number {
		if c < '0' || c > '9' {
			return 0, mac, false
		}
		vni = 10*vni + int(c-'0')
	}
	mac, err := netstate.ParseMAC(string(text))
	return vni, mac, err == nil && mac.IsUnicast()
}

// vtepMAC is the address of this node's VTEP of one family: the one that peers know already, else the existing
// device's, else one made of the node's name, so that it survives a reboot without any memory.
func (b Backend) vtepMAC(node backend.Node, is4 bool) netstate.MAC {
	if stack, ok := node.Last.Stack(is4); ok {
		if vni, mac, _ := parseData(stack.Data); vni == b.options.VNI {
			return mac
		}
	}
	if mac := node.MACs[b.device(is4)]; mac.IsUnicast() {
		return mac
	}
	return b.namedMAC(node.Name, is4)
}

// namedMAC is the address that a node's name makes.
func (b Backend) namedMAC(name string, is4 bool) netstate.MAC {
	var mac netstate.MAC
	sum := sha256.Sum256([]byte(name + "/" + b.device(is4)))
	copy(mac[:], sum[:])
	mac[0] = mac[0]&^1 | 2 // unicast, locally administered
	return mac
}
