package scale

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/controlplane"
)

// space is the namespace of the agents' Lease objects.
const space = "kube-twill"

// openLeases makes the namespace of the Lease objects, and lets agents write there.
func (c *Cluster) openLeases(ctx context.Context, config *rest.Config) error {
	all, err := coordination.NewForConfig(config)
	if err != nil {
		return err
	}
	c.leases = all.Leases(space)
	_, err = c.api.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}}, metav1.CreateOptions{})
	return errors.Join(err, c.server.ApplyRole(ctx, "twill-leases", []controlplane.Rule{{APIGroups: []string{"coordination.k8s.io"},
		Resources: []string{"leases"}, Verbs: []string{"get", "list", "watch", "create", "patch"}}}, agentUser))
}

// publish creates the Lease objects of virtual node i as its agent would.
func (c *Cluster) publish(ctx context.Context, i int, n *corev1.Node) error {
	if c.leases == nil {
		return nil
	}
	for _, p := range c.subnets(i) {
		data, public := "backend-data", "public-ip"
		if !p.Addr().Is4() {
			data, public = "backend-v6-data", "public-ipv6"
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name:            leaseName(p),
			Labels:          map[string]string{prefix + "kube-subnet-manager": "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}},
			Annotations: map[string]string{prefix + "backend-type": "vxlan", prefix + data: n.Annotations[prefix+data],
				prefix + public: n.Annotations[prefix+public]},
		}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &n.Name}}
		if _, err := c.leases.Create(ctx, lease, metav1.CreateOptions{FieldManager: "twilld"}); err != nil {
			return fmt.Errorf("publish the subnet %s of %s: %w", p, n.Name, err)
		}
	}
	return nil
}

// withdraw deletes the Lease objects of virtual node i, as the garbage collector would.
func (c *Cluster) withdraw(ctx context.Context, i int) error {
	if c.leases == nil {
		return nil
	}
	var errs []error
	for _, p := range c.subnets(i) {
		errs = append(errs, c.leases.Delete(ctx, leaseName(p), metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}

// subnets are virtual node i's podCIDRs.
func (c *Cluster) subnets(i int) []netip.Prefix {
	if c.dual {
		return []netip.Prefix{Subnet(i), SubnetV6(i)}
	}
	return []netip.Prefix{Subnet(i)}
}

// leaseName is the name of the Lease object for a subnet.
func leaseName(p netip.Prefix) string {
	return fmt.Sprintf("twill-%s-%d", strings.NewReplacer(".", "-", ":", "-").Replace(p.Addr().StringExpanded()), p.Bits())
}
