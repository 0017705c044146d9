package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

// priced is a cluster of some namespaces, in which each pod of node1 is selected by a policy of its name. The pods of namespace
// "others" are on node2.
type priced struct {
	policy.Snapshot
	site policy.Site
}

func newPriced(b policy.Budget) *priced {
	return &priced{policy.Snapshot{Namespaces: map[string]labels.Set{}},
		policy.Site{Node: "node1", Bridge: "cni0", Subnets: []netip.Prefix{netip.MustParsePrefix("10.100.0.0/16")}, Budget: &b}}
}

// pod adds a pod of node1, or of node2 if its namespace is others.
func (c *priced) pod(namespace, name string) {
	n, node := len(c.Pods), 1
	if namespace == "others" {
		node = 2
	}
	c.Pods = append(c.Pods, &policy.Pod{Namespace: namespace, Name: name, UID: fmt.Sprint(n), Node: fmt.Sprint("node", node),
		Labels: labels.Set{"app": name}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(99 + node), byte(n / 256), byte(n)})}}) //nolint:gosec // parts of a number
}

// policy adds a policy, newer than all before, that lets all pods of all namespaces but those with some values of app reach a pod:
// a rule for each value.
func (c *priced) policy(namespace, app string, not ...string) *policy.NetworkPolicy {
	var p policy.NetworkPolicy
	p.Namespace, p.Name = namespace, app
	p.CreationTimestamp = metav1.NewTime(time.Unix(int64(len(c.Policies)), 0))
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": app}
	p.Spec.PolicyTypes = []policy.Direction{policy.Ingress}
	for _, value := range not {
		p.Spec.Ingress = append(p.Spec.Ingress, policy.IngressRule{From: []policy.Peer{{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: notIn(value)}}})
	}
	c.Policies = append(c.Policies, p)
	return &c.Policies[len(c.Policies)-1]
}

func notIn(value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{value}}}}
}

func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

func (c *priced) table() *policy.Table {
	t, _ := policy.NewTable(c.site, c.Snapshot)
	return t
}

// out returns the policies that are left out.
func out(t *policy.Table) (all []string) {
	for _, x := range t.Spent().LeftOut {
		all = append(all, x.Policy)
	}
	return all
}

// TestBudget: of two namespaces with the same policies the one whose newest policy is beyond its budget has the pods closed that
// this policy selects. Its older policies, and those of others that are newer, are what they are without it.
func TestBudget(t *testing.T) {
	c := newPriced(policy.Budget{Namespace: 1000, Node: 100_000})
	for _, namespace := range []string{"a", "b"} {
		c.pod(namespace, "old")
		c.pod(namespace, "big")
		c.policy(namespace, "old", "0", "1")
	}
	for i := range 100 {
		c.pod("others", fmt.Sprint("pod", i))
	}
	without := c.table()
	c.policy("a", "big", numbers(50)...)
	c.policy("b", "big", "0")
	with := c.table()
	x := with.Spent().LeftOut
	if len(x) != 1 || x[0].Policy != "a/big" || x[0].Limit != 1000 || x[0].Cost <= 1000 || x[0].Node || x[0].Kind != policy.NetworkKind {
		t.Fatalf("left out is %+v, want a/big", x)
	}
	elements := 0
	for key, o := range with.State() {
		if e, ok := o.(netstate.Element); ok && strings.HasPrefix(e.Set, "pods-") {
			elements++
		}
		if was, ok := without.State()[key]; ok && was != o && !strings.Contains(fmt.Sprint(o), "10.100.0.1/32") && !strings.Contains(fmt.Sprint(o), "10.100.0.3/32") {
			t.Errorf("%v was %v", o, was)
		}
	}
	if elements != 2*104 {
		t.Errorf("there are %d elements, want those of the two sets that a/old, b/old and b/big have", elements)
	}
	judged(t, with, c, "a", "big", false)
	judged(t, with, c, "b", "big", true)
	judged(t, with, c, "a", "old", true)
	if big := policy.Most(with.Spent().Namespaces, 1000); big < 0.2 || big > 0.5 {
		t.Errorf("the most that a namespace uses is %v of its budget", big)
	}
	c.policy("a", "big", "0") // newer, and in the budget: the pod stays closed
	judged(t, c.table(), c, "a", "big", false)
	c.Policies = slices.DeleteFunc(c.Policies, func(p policy.NetworkPolicy) bool { return len(p.Spec.Ingress) == 50 })
	judged(t, c.table(), c, "a", "big", true)
}

// judged compares what the table does with packets to a pod from one of the others with what is wanted, by its kernel's rules: a
// pod that is closed has a chain that only drops.
func judged(t *testing.T, table *policy.Table, c *priced, namespace, name string, open bool) {
	t.Helper()
	i := slices.IndexFunc(c.Pods, func(p *policy.Pod) bool { return p.Namespace == namespace && p.Name == name })
	key := netstate.Element{Set: "ingress", Prefix: netstate.Host(c.Pods[i].Addrs[0])}.Key()
	e, ok := table.State()[key].(netstate.Element)
	if !ok {
		t.Fatalf("%s/%s is not in the map of ingress", namespace, name)
	}
	f, ok := table.State()[netstate.Filter{Family: netstate.IPv4, Name: strings.TrimPrefix(e.Verdict, "goto ")}.Key()].(netstate.Filter)
	if closed := f.Rules == "saddr . daddr @self accept\ncounter drop"; !ok || closed == open {
		t.Errorf("%s/%s has the chain %q", namespace, name, f.Rules)
	}
}

// TestBudgetOfPolicyTypes: a policy that is left out closes the directions that it isolates, and no other.
func TestBudgetOfPolicyTypes(t *testing.T) {
	for _, types := range [][]policy.Direction{{policy.Ingress}, {policy.Egress}, {policy.Ingress, policy.Egress}} {
		c := newPriced(policy.Budget{Namespace: 50, Node: 1000})
		c.pod("a", "big")
		for i := range 100 {
			c.pod("others", fmt.Sprint("pod", i))
		}
		p := c.policy("a", "big", "0")
		p.Spec.PolicyTypes = types
		p.Spec.Egress = []policy.EgressRule{{To: p.Spec.Ingress[0].From}}
		table := c.table()
		if got := out(table); !slices.Equal(got, []string{"a/big"}) {
			t.Fatalf("%v: left out is %v", types, got)
		}
		rules, _ := policy.New(c.Snapshot)
		rules.LeaveOut(out(table))
		pod, other := policy.Endpoint{Addr: c.Pods[0].Addrs[0], Pod: c.Pods[0]}, policy.Endpoint{Addr: c.Pods[1].Addrs[0], Pod: c.Pods[1]}
		in, eg := rules.Judge(policy.Flow{From: other, To: pod, Protocol: policy.TCP, Port: 80}), rules.Judge(policy.Flow{From: pod, To: other, Protocol: policy.TCP, Port: 80})
		if in.Allowed() == slices.Contains(types, policy.Ingress) || eg.Allowed() == slices.Contains(types, policy.Egress) {
			t.Errorf("%v: ingress is %+v, egress %+v", types, in, eg)
		}
	}
}

// TestBudgetOfChains: pods with different sets of policies have a chain each with all the rules of its policies.
func TestBudgetOfChains(t *testing.T) {
	c := newPriced(policy.Budget{Namespace: 2000, Node: 100_000})
	for i := range 20 {
		c.pod("a", fmt.Sprint(i))
	}
	p := c.policy("a", "all", numbers(40)...)
	p.Spec.PodSelector = metav1.LabelSelector{}
	for i := range 20 {
		c.policy("a", fmt.Sprint(i), "x"+fmt.Sprint(i))
	}
	table := c.table()
	rules := 0
	for _, o := range table.State() {
		if f, ok := o.(netstate.Filter); ok && strings.HasPrefix(f.Name, "in-") {
			rules += strings.Count(f.Rules, "\n") + 1
		}
	}
	if got := table.Spent().Namespaces["a"]; len(out(table)) == 0 || got > 2000 || rules > got {
		t.Errorf("%v are left out, %d are counted, and there are %d rules", out(table), got, rules)
	}
}

// TestBudgetBounds: whatever policies are drawn, what they cost is not more than what is counted, which is within the limits.
func TestBudgetBounds(t *testing.T) {
	left, tight := 0, 0.0
	for seed := range uint64(200) {
		w := policytest.New(seed)
		w.NotIn, w.More = true, int(seed%5)*5
		s, site := w.Snapshot(6, 8), w.Site(1)
		s.Policies = append(s.Policies, hostile(w, 1+w.IntN(20)))
		s.Pods[0].Namespace = "x"
		site.Budget = &policy.Budget{Namespace: 10 + w.IntN(200), Node: 300}
		table, _ := policy.NewTable(site, s)
		cost := 0
		for _, o := range table.State() {
			switch o := o.(type) {
			case netstate.Element:
				if strings.Contains(o.Set, "-") && o.Verdict == "" {
					cost++
				}
			case netstate.Filter:
				closed := strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(o.Rules, "backwards "), "errors "), "saddr . daddr @self")
				if closed {
					continue // it is not counted
				}
				if strings.HasPrefix(o.Name, "in-") || strings.HasPrefix(o.Name, "eg-") {
					cost += strings.Count(o.Rules, "\n") + 1
				}
			}
		}
		spent := table.Spent()
		if left += len(spent.LeftOut); cost > spent.Node+16 || spent.Node > 300 {
			t.Errorf("seed %d: the table costs %d, counted are %d", seed, cost, spent.Node)
		}
		for namespace, n := range spent.Namespaces {
			if n > site.Budget.Namespace {
				t.Errorf("seed %d: %s has %d of %d", seed, namespace, n, site.Budget.Namespace)
			}
		}
		tight = max(tight, float64(cost)/float64(spent.Node+16))
	}
	if left < 100 || tight < 0.7 {
		t.Errorf("%d policies are left out, and of what is counted at most %v is there", left, tight)
	}
}

// TestBudgetOfGrowth: a policy in force is not left out for pods of other namespaces that come, below the node's limit, whether the
// agent starts anew or not. For pods of its own namespace it is.
func TestBudgetOfGrowth(t *testing.T) {
	grow := func(c *priced, namespace string, n int) (changes []policy.PodChange) {
		for i := range n {
			c.pod(namespace, fmt.Sprint("more", i))
			changes = append(changes, policy.PodChange{Now: c.Pods[len(c.Pods)-1]})
		}
		return changes
	}
	c := newPriced(policy.Budget{Namespace: 100, Node: 1000})
	c.pod("a", "web")
	c.policy("a", "web", "0")
	first := c.table()
	for _, one := range grow(c, "others", 300) {
		if _, ok := first.Follow(c.site, []policy.PodChange{one}); !ok {
			first = c.table()
		}
	}
	if got := out(first); len(got) > 0 {
		t.Errorf("300 pods of others leave out %v", got)
	}
	if half := c.table().Spent(); len(half.LeftOut) > 0 || half.Namespaces["a"] < 300 {
		t.Errorf("300 pods of others: %+v", half)
	}
	again := *c
	again.site.Budget = &policy.Budget{Namespace: 100, Node: 1000}
	if got := out(again.table()); len(got) != 1 {
		t.Errorf("with nothing in force %v are left out, want the policy", got)
	}
	again.site.Budget = &policy.Budget{Namespace: 100, Node: 1000}
	again.site.Budget.Adopt(first.State())
	if got := out(again.table()); len(got) > 0 {
		t.Errorf("after a start %v are left out", got)
	}
	c.policy("a", "web", "1") // a new one pays for all pods
	if got := out(c.table()); len(got) != 1 {
		t.Errorf("of a new policy %v are left out", got)
	}
	c.Policies = c.Policies[:1]
	c.table()
	made := false
	for _, one := range grow(c, "others", 800) {
		if _, ok := first.Follow(c.site, []policy.PodChange{one}); !ok {
			first, made = c.table(), true
		}
	}
	if got := out(first); len(got) != 1 || !made || !first.Spent().LeftOut[0].Node {
		t.Errorf("beyond the node's limit %v are left out", first.Spent().LeftOut)
	}
	c.Pods = c.Pods[:100]
	first = c.table()
	for _, one := range grow(c, "a", 200) {
		if _, ok := first.Follow(c.site, []policy.PodChange{one}); !ok {
			first = c.table()
		}
	}
	if got := out(first); len(got) != 1 {
		t.Errorf("200 pods of its own leave out %v, want the policy", got)
	}
}

// TestBudgetOfClusterPolicies: a version of a ClusterNetworkPolicy that is beyond the budget is not taken, the last one stays, and
// nothing is closed. What is in force is not refused when pods come.
func TestBudgetOfClusterPolicies(t *testing.T) {
	c := newPriced(policy.Budget{Namespace: 200, Node: 10_000})
	c.pod("a", "web")
	for i := range 50 {
		c.pod("others", fmt.Sprint("pod", i))
	}
	var p policy.ClusterNetworkPolicy
	p.Name = "guard"
	p.Spec = policy.ClusterSpec{Tier: policy.Admin, Subject: policy.ClusterPeer{Namespaces: &metav1.LabelSelector{}},
		Ingress: []policy.ClusterIngressRule{{Action: policy.Deny, From: []policy.ClusterPeer{{Pods: &policy.NamespacedPods{PodSelector: *notIn("0")}}}}}}
	c.ClusterPolicies = []policy.ClusterNetworkPolicy{p}
	was := c.table()
	big := p
	big.Spec.Ingress = nil
	for i := range 20 {
		big.Spec.Ingress = append(big.Spec.Ingress, policy.ClusterIngressRule{Action: policy.Accept,
			From: []policy.ClusterPeer{{Pods: &policy.NamespacedPods{PodSelector: *notIn(fmt.Sprint("x", i))}}}})
	}
	other := p
	other.Name, other.Spec.Priority = "other", 7
	c.ClusterPolicies = []policy.ClusterNetworkPolicy{big, other}
	now := c.table()
	if x := now.Spent().Refused; len(x) != 1 || x[0].Policy != "guard" || x[0].Kind != policy.ClusterKind || x[0].Cost <= 200 {
		t.Errorf("refused is %+v", x)
	}
	c.ClusterPolicies = []policy.ClusterNetworkPolicy{p, other}
	if d := netstate.Diff(c.table().State(), now.State()); len(d) > 0 {
		t.Errorf("the last version is not what is enforced:\n%s", d)
	}
	c.ClusterPolicies = []policy.ClusterNetworkPolicy{p}
	for i := range 300 {
		c.pod("others", fmt.Sprint("more", i))
	}
	if s := c.table().Spent(); len(s.Refused) > 0 || s.Cluster["guard"] < 350 {
		t.Errorf("what is in force is refused: %+v", s)
	}
	c.site.Budget = &policy.Budget{Namespace: 200, Node: 10_000}
	c.site.Budget.Adopt(was.State())
	if s := c.table().Spent(); len(s.Refused) > 0 {
		t.Errorf("after a start what is in force is refused: %+v", s)
	}
	c.site.Budget = &policy.Budget{Namespace: 200, Node: 10_000}
	if s := c.table().Spent(); len(s.Refused) != 1 || len(s.LeftOut) > 0 {
		t.Errorf("with nothing in force: %+v", s)
	}
}
