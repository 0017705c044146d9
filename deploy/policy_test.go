package deploy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
)

// TestOwnClaims: what the admission policies and the rights let an agent's token do to Lease objects, and its Node's conditions.
func TestOwnClaims(t *testing.T) {
	a := startCluster(t)
	a.must("", a.kubectl, "apply", "--filename=../Documentation/twill.yml")
	claim := func(name, holder, more string) string {
		return fmt.Sprintf(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q,"namespace":"kube-twill"%s},`+
			`"spec":{"holderIdentity":%q}}`, name, more, holder)
	}
	owner := func(kind, name string) string {
		return fmt.Sprintf(`,"ownerReferences":[{"apiVersion":"v1","kind":%q,"name":%q,"uid":"u"}]`, kind, name)
	}
	named := func(node string) string {
		return fmt.Sprintf(`,"annotations":{"flannel.alpha.coreos.com/node-name":%q}`, node)
	}
	as := func(node string) []string {
		return []string{"--as=system:serviceaccount:kube-twill:twill", "--as-group=system:serviceaccounts",
			"--as-user-extra=authentication.kubernetes.io/node-name=" + node}
	}
	create := func(object string) (string, error) {
		return a.do(object, a.kubectl, append(as("node1"), "create", "--filename=-", "--validate=false")...)
	}
	patch := func(name, body string) (string, error) {
		return a.do("", a.kubectl, append(as("node1"), "--namespace=kube-twill", "patch", "lease", name, "--type=merge", "--patch="+body)...)
	}
	condition := func(kind string) (string, error) {
		object := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"node1"},"status":{"conditions":[{"type":%q,"status":"False"}]}}`, kind)
		return a.do(object, a.kubectl, append(as("node1"), "apply", "--server-side", "--subresource=status", "--filename=-", "--validate=false")...)
	}
	a.must(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"node1"}}`, a.kubectl, "create", "--filename=-")
	a.must(claim("twill-10-244-2-0-24", "node2", owner("Node", "node2")), a.kubectl, "create", "--filename=-")
	a.must(claim("twill-10-244-3-0-24", "node1", ""), a.kubectl, "create", "--filename=-")
	testwait.Nil(t, "the policy is in force", func() error { // the API server reads policies now and then
		out, err := create(claim("twill-10-244-9-0-24", "node9", ""))
		if err != nil && strings.Contains(out, "for its own node only") {
			return nil
		}
		_, _ = a.do("", a.kubectl, "--namespace=kube-twill", "delete", "lease", "twill-10-244-9-0-24")
		return fmt.Errorf("%v: %s", err, out)
	})
	for _, c := range []struct {
		what   string
		do     func() (string, error)
		refuse string // empty: it is allowed
	}{
		{"its own", func() (string, error) { return create(claim("twill-10-244-1-0-24", "node1", owner("Node", "node1"))) }, ""},
		{"another name", func() (string, error) { return create(claim("leader-election", "node1", "")) }, "begins with twill-"},
		{"another's Node as owner", func() (string, error) {
			return create(claim("twill-10-244-7-0-24", "node1", owner("Node", "node2")))
		}, "owned by its node"},
		{"a Pod as owner", func() (string, error) {
			return create(claim("twill-10-244-7-0-24", "node1", owner("Pod", "node1")))
		}, "owned by its node"},
		{"another's name", func() (string, error) {
			return create(claim("twill-10-244-7-0-24", "node1", owner("Node", "node1")+named("node2")))
		}, "names its own node"},
		{"a Node of an unknown API as owner", func() (string, error) {
			return create(strings.Replace(claim("twill-10-244-7-0-24", "node1", owner("Node", "node1")), `[{"apiVersion":"v1"`, `[{"apiVersion":"x/v1"`, 1))
		}, "owned by its node"},
		{"no owner", func() (string, error) { return create(claim("twill-10-244-7-0-24", "node1", named("node1"))) }, "owned by its node"},
		{"two owners", func() (string, error) {
			return patch("twill-10-244-1-0-24", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node1","uid":"u"},`+
				`{"apiVersion":"v1","kind":"Node","name":"node1","uid":"v"}]}}`)
		}, "owned by its node"},
		{"its owner, taken away", func() (string, error) {
			return patch("twill-10-244-1-0-24", `{"metadata":{"ownerReferences":null}}`)
		}, "owned by its node"},
		{"nobody's", func() (string, error) {
			return create(strings.Replace(claim("twill-10-244-8-0-24", "", ""), `"holderIdentity":""`, "", 1))
		}, "for its own node only"},
		{"a label on its own", func() (string, error) {
			return patch("twill-10-244-1-0-24", `{"metadata":{"labels":{"flannel.alpha.coreos.com/kube-subnet-manager":"true"}}}`)
		}, ""},
		{"its own reservation", func() (string, error) {
			return patch("twill-10-244-3-0-24", `{"metadata":{"annotations":{"flannel.alpha.coreos.com/node-name":"node1"}}}`)
		}, ""},
		{"another's object", func() (string, error) {
			return patch("twill-10-244-2-0-24", `{"metadata":{"annotations":{"flannel.alpha.coreos.com/public-ip":"192.0.2.1"}}}`)
		}, "for its own node only"},
		{"another's object, taken over", func() (string, error) {
			return patch("twill-10-244-2-0-24", `{"metadata":{"ownerReferences":null},"spec":{"holderIdentity":"node1"}}`)
		}, "for its own node only"},
		{"its own object, given away", func() (string, error) {
			return patch("twill-10-244-1-0-24", `{"metadata":{"ownerReferences":null},"spec":{"holderIdentity":"node2"}}`)
		}, "for its own node only"},
		{"a deletion without self-lease", func() (string, error) {
			return a.do("", a.kubectl, append(as("node1"), "--namespace=kube-twill", "delete", "lease", "twill-10-244-1-0-24")...)
		}, "forbidden"},
		{"whether its network is available", func() (string, error) { return condition("NetworkUnavailable") }, ""},
		{"whether peers are reached", func() (string, error) { return condition("TwillPeersReached") }, ""},
		{"whether it is ready", func() (string, error) { return condition("Ready") }, "the conditions NetworkUnavailable and TwillPeersReached only"},
		{"another namespace", func() (string, error) {
			return a.do("", a.kubectl, append(as("node1"), "--namespace=kube-system", "get", "leases")...)
		}, "forbidden"},
	} {
		out, err := c.do()
		if (err != nil) != (c.refuse != "") || !strings.Contains(out, c.refuse) {
			t.Errorf("%s: %v, %s; want refused because %q", c.what, err, out, c.refuse)
		}
	}
}
