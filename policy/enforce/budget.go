package enforce

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/subnet"
)

// budget is what was told of policies that cost too much, and how much more may be.
type budget struct {
	told     map[string]bool // what is so now, and was told
	lines    *rate.Limiter
	unlogged int  // lines that were not written
	adopted  bool // what an earlier agent enforced was looked for
}

// budgetLines is how many lines about costs are written at once. One a minute follows.
const budgetLines = 100

func newBudget() budget { return budget{lines: rate.NewLimiter(rate.Every(time.Minute), budgetLines)} }

// mostNames is how many policies that are left out are named.
const mostNames = 1000

// leftOut are policies that cost too much, by name.
type leftOut struct{ policies, refused []string }

// LeftOut returns the NetworkPolicies that are left out because of what they cost the node, by namespace/name, and the
// ClusterNetworkPolicies of which the last version stays: at most a thousand of each.
func (e *Enforcer) LeftOut() (policies, refused []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leftOut.policies, e.leftOut.refused
}

// newTable makes the table. Where the first one leaves policies out, it is made again with what an earlier agent enforced.
func (e *Enforcer) newTable(ctx context.Context, site policy.Site, s policy.Snapshot) (*policy.Table, []policy.Skip) {
	table, skips := policy.NewTable(site, s)
	spent := table.Spent()
	if e.budget.adopted || len(spent.LeftOut)+len(spent.Refused) == 0 {
		e.budget.adopted = true
		return table, skips
	}
	e.budget.adopted = true
	have, err := e.Kernel.Observe(ctx, nil)
	if err != nil {
		e.causes.Error(e.Log, "read which network policies were in force", err)
		return table, skips
	}
	site.Budget.Adopt(have)
	return policy.NewTable(site, s)
}

// reportBudget tells of policies that cost too much, each once while it does.
func (e *Enforcer) reportBudget(spent policy.Spent) {
	if e.Budget == nil {
		return
	}
	before := e.budget.told
	e.budget.told = map[string]bool{}
	tell := func(x policy.Excess, reason, message string) {
		key := fmt.Sprint(reason, " ", x.Kind, " ", x.Policy, " ", x.UID)
		if e.budget.told[key] = true; !before[key] {
			e.tellBudget(x, reason, message)
		}
	}
	var now leftOut
	closed := "are closed"
	if e.Audit {
		closed = "would be closed if policies were enforced"
	}
	for _, x := range spent.LeftOut {
		what, flag := "the NetworkPolicies of its namespace", namespaceFlag
		if x.Node {
			what, flag = "all NetworkPolicies", nodeFlag
		}
		tell(x, "PolicyLeftOut", fmt.Sprintf("on node %s %s need %d rules and elements with this one, and %s is %d: "+
			"the pods that it selects there %s", e.Node, what, x.Cost, flag, x.Limit, closed))
		now.policies = named(now.policies, x)
	}
	for _, x := range spent.Refused {
		tell(x, "PolicyRefused", fmt.Sprintf("on node %s it needs %d rules and elements, and %s is %d: its last version there stays",
			e.Node, x.Cost, namespaceFlag, x.Limit))
		now.refused = named(now.refused, x)
	}
	for _, x := range spent.Half {
		tell(x, "PolicyBudgetHalf", fmt.Sprintf("on node %s the NetworkPolicies of its namespace need %d rules and elements with this one, "+
			"and %s is %d: what passes it is left out", e.Node, x.Cost, namespaceFlag, x.Limit))
	}
	if limit := e.Budget.Node; spent.Node > limit/2 {
		tell(policy.Excess{}, "PolicyBudgetHalf", fmt.Sprintf("NetworkPolicies need more than half of the %d rules and elements of %s: "+
			"what passes it is left out", limit, nodeFlag))
	}
	e.Metrics.spent(*e.Budget, spent)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leftOut = now
}

// The flags of twilld.
const namespaceFlag, nodeFlag = "--network-policy-budget", "--network-policy-node-budget"

func named(all []string, x policy.Excess) []string {
	if len(all) < mostNames {
		all = append(all, x.Policy)
	}
	return all
}

// tellBudget logs, and makes an event of the policy, or of the node.
func (e *Enforcer) tellBudget(x policy.Excess, reason, message string) {
	about := subnet.Object{APIVersion: "networking.k8s.io/v1", Kind: x.Kind, Name: x.Policy, UID: x.UID}
	if x.Kind == policy.ClusterKind {
		about.APIVersion = "policy.networking.k8s.io/v1alpha2"
	} else if namespace, name, ok := strings.Cut(x.Policy, "/"); ok {
		about.Namespace, about.Name = namespace, name
	}
	switch {
	case x.Policy == "" && e.Event != nil:
		e.Event("Warning", reason, message)
	case x.Policy != "" && e.ObjectEvent != nil:
		e.ObjectEvent(about, "Warning", reason, message)
	}
	if !e.budget.lines.Allow() {
		e.budget.unlogged++
		return
	}
	args := []any{"kind", x.Kind, "policy", x.Policy, "reason", message}
	if e.budget.unlogged > 0 {
		args = append(args, "more_of_this_was_not_logged", e.budget.unlogged)
		e.budget.unlogged = 0
	}
	log := e.Log.Warn
	if reason == "PolicyRefused" {
		log = e.Log.Error
	}
	log("network policies cost this node much", args...)
}
