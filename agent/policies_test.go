package agent

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"
)

// policies are enforced unless they are an error.
type policies struct{ error }

func (p policies) Protect([]netip.Prefix) error      { return p.error }
func (p policies) Tunnels(map[netip.Addr]netip.Addr) {}
func (p policies) Enforced() error                   { return p.error }

// TestPolicyStatus: /status says whether network policies are enforced, and nothing if that is not this agent's work.
func TestPolicyStatus(t *testing.T) {
	for want, p := range map[string]Policies{
		`{"node":"","backend":"","notReady":"no lease, or not in sync with the store yet"}`: nil,
		`{"node":"","backend":"","notReady":"no lease, or not in sync with the store yet",` +
			`"policies":{"enforced":true}}`: policies{},
		`{"node":"","backend":"","notReady":"no lease, or not in sync with the store yet",` +
			`"policies":{"enforced":false,"error":"no buffer space"}}`: policies{errors.New("no buffer space")},
	} {
		a := New(Config{Policies: p})
		if got, err := json.Marshal(a.report()); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}
