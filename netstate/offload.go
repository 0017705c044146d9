package netstate

// Offload is whether a device leaves the checksums of the packets that it sends to the device below (ethtool's
// tx-checksum-ip-generic). Like a Sysctl it cannot be absent, so Diff never deletes it. Cascade: a device that is made
// again has it on.
type Offload struct {
	Dev string
	On  bool
}

// Key implements Object.
func (o Offload) Key() Key { return Key{Kind: KindOffload, Name: o.Dev} }

func (o Offload) String() string {
	state := "off"
	if o.On {
		state = "on"
	}
	return words("offload", o.Dev, "tx-checksum-ip-generic", state)
}
