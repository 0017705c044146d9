package facts

import (
	"encoding/json"
	"testing"

	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/subnet"
)

// TestUsesWireGuard: a node has WireGuard's devices as long as it keeps that backend beside the network config's.
func TestUsesWireGuard(t *testing.T) {
	for _, test := range []struct {
		conf, kept string
		want       bool
	}{
		{`{"Type":"wireguard"}`, "", true},
		{`{"Type":"wireguard"}`, `{"Type":"vxlan"}`, true},
		{`{"Type":"vxlan"}`, `{"Type":"wireguard"}`, true},
		{`{"Type":"vxlan"}`, `{"Type":"host-gw"}`, false},
		{`{"Type":"vxlan"}`, "", false},
	} {
		conf, err := subnet.ParseConfig([]byte(`{"Network":"10.244.0.0/16","Backend":` + test.conf + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if test.kept != "" {
			conf.Kept = []json.RawMessage{json.RawMessage(test.kept)}
		}
		b, _, err := registry.NewKept(conf)
		if err != nil {
			t.Fatal(err)
		}
		if got := usesWireGuard(b); got != test.want {
			t.Errorf("%s, kept %s: %t", test.conf, test.kept, got)
		}
	}
}
