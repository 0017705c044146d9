package agent

import (
	"fmt"

	"github.com/twill-net/twill/netstate"
)

// keepsPods says whether a change would take the gateway from pods that live: it deletes an address of the bridge
// in whose subnet there are pods, because the node's lease changed under them. Such an address stays until the last
// of them is gone, and everybody is told; new pods get the new subnet's addresses meanwhile.
func (a *Agent) keepsPods(c netstate.Change) bool {
	addr, ok := c.Was.(netstate.Addr)
	if !ok || c.Want != nil || addr.Dev != a.Base.Bridge || a.Live == nil {
		return false
	}
	pods, err := a.Live(addr.Prefix)
	if err != nil {
		a.status.logError(a.Log, "count the pods of "+addr.Prefix.Masked().String(), err)
		return true // in doubt the pods keep their gateway
	}
	if pods == 0 {
		return false
	}
	text := fmt.Sprintf("%d pods have addresses of %s, which is not this node's subnet any more: other nodes do not reach them, delete them",
		pods, addr.Prefix.Masked())
	if a.status.isNews("old subnet "+addr.Prefix.String(), text) {
		a.Log.Warn("pods of an old lease", "node", a.Node, "dst", addr.Prefix.Masked(), "pods", pods, "reason", text)
		a.event("Warning", "PodsOfOldLease", text)
	}
	return true
}
