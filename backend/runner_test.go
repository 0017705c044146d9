package backend_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/alloc"
	"github.com/twill-net/twill/backend/hostgw"
	"github.com/twill-net/twill/backend/udp"
	"github.com/twill-net/twill/backend/vxlan"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// TestLeft: what flannel left is known by the subnets' length; routes with a gateway are only its own where
// its backend made such.
func TestLeft(t *testing.T) {
	four, six := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fc00::/48")
	pools := []subnet.Pool{{Network: four, SubnetLen: 24}, {Network: six, SubnetLen: 64}}
	left := func(gateways bool) []netstate.Left {
		return []netstate.Left{{Network: four, Bits: 24, Gateways: gateways}, {Network: six, Bits: 64, Gateways: gateways}}
	}
	for name, test := range map[string]struct {
		made    func([]netip.Prefix, json.RawMessage) (backend.Backend, []string, error)
		options string
		want    []netstate.Left
	}{
		"host-gw":                   {hostgw.New, "", left(true)},
		"vxlan":                     {vxlan.New, "", left(false)},
		"vxlan with direct routing": {vxlan.New, `{"DirectRouting":true}`, left(true)},
		"udp":                       {udp.New, "", left(false)},
		"alloc":                     {alloc.New, "", nil},
	} {
		b, _, err := test.made([]netip.Prefix{four, six}, json.RawMessage(test.options))
		if err != nil {
			t.Fatal(err)
		}
		if got := backend.Left(b, pools); !slices.Equal(got, test.want) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
