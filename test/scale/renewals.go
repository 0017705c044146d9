package scale

import (
	"context"
	"encoding/json"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

// openRenewals makes the namespace of kubelets' own Lease objects.
func (c *Cluster) openRenewals(ctx context.Context, config *rest.Config) error {
	all, err := coordination.NewForConfig(config)
	if err != nil {
		return err
	}
	c.renewals = all.Leases(corev1.NamespaceNodeLease)
	_, err = c.api.Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Renew writes the Lease objects by which the kubelets of the nodes [from, to) say that they are alive, every ten
// seconds. They are of no interest to agents.
func (c *Cluster) Renew(ctx context.Context, from, to int) error {
	return c.each(ctx, from, to, func(ctx context.Context, i int) error {
		now := metav1.NowMicro()
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": now}})
		if err != nil {
			return err
		}
		_, err = c.renewals.Patch(ctx, Name(i), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubelet"})
		if apierrors.IsNotFound(err) {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: Name(i)},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: new(Name(i)), RenewTime: &now, LeaseDurationSeconds: new(int32(40))}}
			_, err = c.renewals.Create(ctx, lease, metav1.CreateOptions{FieldManager: "kubelet"})
		}
		return err
	})
}

// CPU is the processor time that the API server has used since it was started.
func (c *Cluster) CPU() time.Duration { return cpuOf(c.server.Pid()) }
