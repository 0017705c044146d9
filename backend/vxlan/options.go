package vxlan

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/twill-net/twill/backend"
)

// Options are net-conf.json's Backend keys of flannel's vxlan.
type Options struct {
	VNI           int  // 1 to 16777215
	Port          int  // UDP; 0: the kernel's 8472
	MTU           int  // of the underlay, bytes; 0: the interface's
	GBP           bool // group based policy extension
	Learning      bool // learn MAC addresses from packets
	DirectRouting bool // no encapsulation to peers on the same L2 segment
	// TxChecksum is not flannel's: whether the devices leave checksums to the NIC. Empty: nobody touches that.
	TxChecksum TxChecksum
	FastPath   bool   // not flannel's: packets take the fast path
	SkipMark   uint32 // not flannel's: see backend.FastPath

	Strict        bool // not flannel's: see backend.Strict
	SpreadMetrics bool // not flannel's: see backend.RouteMetric
}

// TxChecksum is what becomes of the devices' checksum offload.
type TxChecksum string

// The values.
const (
	ChecksumOn   TxChecksum = "on"   // kept on
	ChecksumOff  TxChecksum = "off"  // kept off
	ChecksumAuto TxChecksum = "auto" // kept off from when packets were found to arrive broken
)

// kernelPort is the UDP port that the Linux kernel gave to VXLAN before the IANA chose 4789.
const kernelPort = 8472

const maxVNI = 1<<24 - 1

func parseOptions(raw json.RawMessage) (Options, []string, error) {
	o := Options{VNI: 1}
	warnings, err := backend.ParseOptions(raw, &o)
	if err != nil {
		return o, nil, err
	}
	if o.Port == 0 {
		o.Port = kernelPort
	}
	return o, warnings, o.validate()
}

func (o Options) validate() error {
	switch {
	case o.VNI < 1 || o.VNI > maxVNI:
		return fmt.Errorf("net-conf Backend: VNI %d: want 1 to %d", o.VNI, maxVNI)
	case o.Port < 1 || o.Port > 65535:
		return fmt.Errorf("net-conf Backend: Port %d: want 1 to 65535, or 0 for %d", o.Port, kernelPort)
	case o.MTU != 0 && (o.MTU < minMTU || o.MTU > maxMTU):
		return fmt.Errorf("net-conf Backend: MTU %d: want %d to %d, or 0 for the interface's", o.MTU, minMTU, maxMTU)
	}
	if err := backend.CheckStrict(o.Strict, o.DirectRouting); err != nil {
		return err
	}
	switch o.TxChecksum {
	case "", ChecksumOn, ChecksumOff, ChecksumAuto:
		return nil
	}
	return fmt.Errorf("net-conf Backend: TxChecksum %q: want \"auto\", \"on\" or \"off\"", o.TxChecksum)
}

// fits refuses an MTU with which the VTEP of one of the networks' families would be none: the kernel takes IPv6 off
// a device with less than 1280 bytes (RFC 8200).
func (o Options) fits(networks []netip.Prefix) error {
	const least = 1280 + overhead6
	for _, n := range networks {
		if !n.Addr().Is4() && o.MTU != 0 && o.MTU < least {
			return fmt.Errorf(
				"net-conf Backend: MTU %d: want at least %d, because IPv6 pods need packets of 1280 bytes",
				o.MTU,
				least,
			)
		}
	}
	return nil
}

// An IPv4 host must take packets of 576 bytes (RFC 791), plus the encapsulation; no IP packet is longer
// than 65535.
const minMTU, maxMTU = 576 + overhead4, 65535
