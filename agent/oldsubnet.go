package agent

import (
	"fmt"
	"log/slog"

	"github.com/twill-net/twill/netstate"
)

// keptGateway is an address of the bridge that is not wanted any more, because the node's lease
// changed, and stays because pods have it as their gateway. It goes with the last of them; new pods
// have addresses of the new subnet.
type keptGateway struct {
	addr netstate.Addr
	pods int
	err  error // pods could not be counted; in doubt they keep their gateway
}

// keptGateways returns those that a plan would delete. An address within a subnet that is wanted is no pod's gateway:
// its pods have the wanted one.
func (a *Agent) keptGateways(plan netstate.Plan, want netstate.State) (kept []keptGateway) {
	for _, c := range plan {
		addr, ok := c.Was.(netstate.Addr)
		if !ok || c.Want != nil || addr.Dev != a.Base.Bridge || a.Live == nil || inWantedSubnet(addr, want) {
			continue
		}
		if pods, err := a.Live(addr.Prefix); err != nil || pods > 0 {
			kept = append(kept, keptGateway{addr, pods, err})
		}
	}
	return kept
}

// inWantedSubnet reports whether the bridge has another wanted address with a subnet that holds addr.
func inWantedSubnet(addr netstate.Addr, want netstate.State) bool {
	for _, o := range want {
		if w, ok := o.(netstate.Addr); ok && w.Dev == addr.Dev && w.Prefix.Contains(addr.Prefix.Addr()) {
			return true
		}
	}
	return false
}

func (a *Agent) reportKeptGateways(kept []keptGateway) {
	for _, k := range kept {
		if k.err != nil {
			a.causes.Error(a.Log, "count the pods of "+k.addr.Prefix.Masked().String(), k.err)
			continue
		}
		old := k.addr.Prefix.Masked()
		text := fmt.Sprintf("%d pods have addresses of %s, which is not this node's subnet any more: "+
			"other nodes do not reach them, delete them", k.pods, old)
		if a.causes.Add(a.Log, slog.LevelWarn, "pods of an old lease", old.String(),
			"node", a.Node, "dst", old, "pods", k.pods, "reason", text) {
			a.event("Warning", "PodsOfOldLease", text)
		}
	}
}
