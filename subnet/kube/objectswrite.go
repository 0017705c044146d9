package kube

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/subnet"
)

// publishObjects writes l to the node's Lease objects. That it fails does not keep the node from the network: its
// annotations are written, and peers read these then. Watch tries again. Call it with own.writing held.
func (s *Store) publishObjects(ctx context.Context, n *node, l subnet.Lease, stale []part) error {
	if s.leaseSpace == "" {
		return nil
	}
	var all []error
	for _, st := range l.Stacks {
		all = append(all, s.writeObject(ctx, n, l, st))
	}
	for _, p := range stale {
		all = append(all, s.withdraw(ctx, p))
	}
	err := errors.Join(all...)
	if ctx.Err() == nil && s.progress.Report(taskObjects, err) && err != nil {
		s.Event(warning, "LeaseObjectNotPublished", err.Error())
	}
	return err
}

// writeObject writes what the Lease object for a subnet of l lacks, or creates it.
func (s *Store) writeObject(ctx context.Context, n *node, l subnet.Lease, st subnet.Stack) error {
	name, labels := claimName(st.Subnet), map[string]*string{s.annotations.managed: new("true")}
	notes := s.annotations.object(l, st, s.own.asked())
	var there claim
	err := do(ctx, leases(s.api.rest.Get(), s.leaseSpace).Name(name), kubeclient.CallTimeout, &there)
	switch {
	case apierrors.IsNotFound(err):
		made := newClaim(n, st.Subnet)
		made.Labels, made.Annotations = said(labels), said(notes)
		err = s.api.create(ctx, leases(s.api.rest.Post(), s.leaseSpace), made)
		return kubeclient.Explain("create", "leases in namespace "+s.leaseSpace, err)
	case err != nil:
		return kubeclient.Explain("get", "leases in namespace "+s.leaseSpace, err)
	case !there.names(n):
		return errNotOurs(s.leaseSpace, there)
	}
	change := map[string]any{}
	if len(there.OwnerReferences) == 0 { // an administrator's reservation, which outlives the Node
		notes[s.annotations.node] = &n.Name
	} else if !there.of(n) || len(there.OwnerReferences) > 1 {
		change["ownerReferences"] = newClaim(n, st.Subnet).OwnerReferences
	}
	if lacking(there.Labels, labels) || lacking(there.Annotations, notes) {
		change["labels"], change["annotations"] = labels, notes
	}
	if len(change) == 0 {
		return nil
	}
	change["uid"] = there.UID // no newer object
	return s.patchObject(ctx, name, change)
}

// said returns what is in want and not nil.
func said(want map[string]*string) map[string]string {
	all := map[string]string{}
	for key, value := range want {
		if value != nil {
			all[key] = *value
		}
	}
	return all
}

// lacking reports whether have is not as want says.
func lacking(have map[string]string, want map[string]*string) bool {
	for key, value := range want {
		got, ok := have[key]
		if ok != (value != nil) || ok && got != *value {
			return true
		}
	}
	return false
}

// withdraw takes the label from an object of this node, whose subnet is not the node's any more. The claim stays, as
// long as the Node does.
func (s *Store) withdraw(ctx context.Context, p part) error {
	none := map[string]any{"labels": map[string]any{s.annotations.managed: nil},
		"annotations": map[string]any{s.annotations.asks: nil}}
	err := s.patchObject(ctx, p.name, none)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// patchObject patches the metadata of a Lease object.
func (s *Store) patchObject(ctx context.Context, name string, metadata map[string]any) error {
	to := s.api.Metadata.Resource(leasesResource).Namespace(s.leaseSpace)
	err := s.api.patch(ctx, to, name, types.MergePatchType, map[string]any{"metadata": metadata})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("the Lease object %s/%s was replaced while it was written: %w", s.leaseSpace, name, err)
	}
	return kubeclient.Explain("patch", "leases in namespace "+s.leaseSpace, err)
}

// keepObjects writes the Lease objects again if one is not as it should be. It returns an error if it is to be called
// again although nothing changes.
func (s *Store) keepObjects(ctx context.Context, v *sources, r record, limit *rate.Limiter) error {
	if v.leases == nil || !s.behind(v.leases, r) {
		return nil
	}
	if err := limit.Wait(ctx); err != nil {
		return err
	}
	s.own.writing.Lock()
	defer s.own.writing.Unlock()
	want := s.own.wanted() // an Acquire that ran meanwhile has the newer one
	l, err := s.local(*want, r)
	if err != nil {
		return nil // keepLease says so
	}
	parts, _ := v.leases.own()
	return s.publishObjects(ctx, &node{ObjectMeta: metav1.ObjectMeta{Name: r.name, UID: r.uid}}, l, stale(parts, l))
}

// behind reports whether the Lease objects are not what they should be, as far as that is known.
func (s *Store) behind(c *leaseObjects, r record) bool {
	want := s.own.wanted()
	if want == nil {
		return false
	}
	l, err := s.local(*want, r)
	parts, synced := c.own()
	if err != nil || !synced {
		return false
	}
	if s.annotations.unpublished(parts, r.uid, l, s.own.asked()) {
		return true
	}
	s.progress.Report(taskObjects, nil)
	return false
}

// stale returns the parts that are not of l.
func stale(parts []part, l subnet.Lease) (all []part) {
	of := map[string]bool{}
	for _, st := range l.Stacks {
		of[claimName(st.Subnet)] = true
	}
	for _, p := range parts {
		if !of[p.name] {
			all = append(all, p)
		}
	}
	return all
}
