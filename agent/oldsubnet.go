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

// keptGateways returns those that a plan would delete.
func (a *Agent) keptGateways(plan netstate.Plan) (kept []keptGateway) {
	for _, c := range plan {
		addr, ok := c.Was.(netstate.Addr)
		if !ok || c.Want != nil || addr.Dev != a.Base.Bridge || a.Live == nil {
			continue
		}
		if pods, err := a.Live(addr.Prefix); err != nil || pods > 0 {
			kept = append(kept, keptGateway{addr, pods, err})
		}
	}
	return kept
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
