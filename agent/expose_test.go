package agent

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/subnet"
)

// TestStrictInTransition: while wireguard takes another backend's place, or another one its, no packet of a pod leaves by the
// default route, unless one of the two sends plain.
func TestStrictInTransition(t *testing.T) {
	for _, test := range []struct {
		conf, kept string
		strict     bool
	}{
		{`{"Type":"wireguard"}`, `{"Type":"vxlan"}`, true},
		{`{"Type":"vxlan"}`, `{"Type":"wireguard"}`, true},
		{`{"Type":"vxlan","Strict":true,"VNI":7}`, `{"Type":"vxlan"}`, true},
		{`{"Type":"wireguard"}`, `{"Type":"host-gw"}`, false},
		{`{"Type":"wireguard"}`, `{"Type":"vxlan","DirectRouting":true}`, false},
		{`{"Type":"udp"}`, `{"Type":"vxlan"}`, false},
	} {
		conf, err := subnet.ParseConfig([]byte(`{"Network":"10.244.0.0/16","Backend":` + test.conf + `}`))
		if err != nil {
			t.Fatal(err)
		}
		conf.Kept = []json.RawMessage{json.RawMessage(test.kept)}
		b, _, err := registry.NewKept(conf)
		if err != nil {
			t.Fatal(err)
		}
		s := backend.FirewallStack{Cluster: netip.MustParsePrefix("10.244.0.0/16")}
		if (Planner{Backend: b}).expose(&s); s.Strict != test.strict {
			t.Errorf("%s after %s: strict %t", test.conf, test.kept, s.Strict)
		}
	}
}
