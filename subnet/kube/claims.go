package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// A claim is a Lease object of coordination.k8s.io whose name is a subnet: twill-10-244-7-0-24. Names are unique, so
// its creation is the claim. It is owned by the Node, so that the garbage collector frees the subnet when the node is
// deleted. One that an administrator made, with no owner, is a reservation: for the node that its holderIdentity
// names, or for nobody.
const claimPrefix = "twill-"

// claimName returns the name of the claim on p: IPv6 addresses with all their digits, since names cannot end in colons.
func claimName(p netip.Prefix) string {
	addr := strings.NewReplacer(".", "-", ":", "-").Replace(p.Addr().StringExpanded())
	return claimPrefix + addr + "-" + strconv.Itoa(p.Bits())
}

// claimed reads a claim's name; false: it is no claim.
func claimed(name string) (netip.Prefix, bool) {
	rest, ok := strings.CutPrefix(name, claimPrefix)
	i := strings.LastIndexByte(rest, '-')
	if !ok || i < 0 {
		return netip.Prefix{}, false
	}
	separator := "."
	if strings.Count(rest[:i], "-") == 7 {
		separator = ":"
	}
	p, err := netip.ParsePrefix(strings.ReplaceAll(rest[:i], "-", separator) + "/" + rest[i+1:])
	return p, err == nil && p == p.Masked()
}

// maxClaims bounds the claims that one attempt loses to quicker nodes; the next attempt comes a second later.
const maxClaims = 20

// assign gives a node without podCIDR a free subnet of each pool: it claims them and writes them to the node's spec,
// where a controller would, so that everybody reads them as ever. An error is worth a retry.
func (s *Store) assign(ctx context.Context, n *node, want subnet.Lease) error {
	others, err := s.assignedCIDRs(ctx)
	if err != nil {
		return err
	}
	for range maxClaims {
		got, err := s.tryClaims(ctx, n, want, others)
		if errors.Is(err, errClaimed) {
			continue // what was lost is in the next list
		}
		if err != nil {
			return err
		}
		err = s.api.setPodCIDRs(ctx, n, got)
		if apierrors.IsInvalid(err) || apierrors.IsConflict(err) {
			err = errors.Join(err, s.release(ctx, n))
		}
		return err
	}
	return fmt.Errorf("node %q %w: other nodes were quicker to claim %d subnets", n.Name, errNoPodCIDR, maxClaims)
}

// tryClaims claims the first free subnet for each stack of want, or what is n's already.
func (s *Store) tryClaims(
	ctx context.Context, n *node, want subnet.Lease, others []netip.Prefix,
) ([]netip.Prefix, error) {
	all, err := s.api.listClaims(ctx, s.claimSpace)
	if err != nil {
		return nil, err
	}
	wishes, used, err := s.sortClaims(ctx, n, all)
	if err != nil {
		return nil, err
	}
	want.Stacks = slices.Clone(want.Stacks)
	for i, st := range want.Stacks {
		same := func(p netip.Prefix) bool { return netstate.FamilyOf(p.Addr()) == st.Family() }
		if at := slices.IndexFunc(wishes, same); at >= 0 {
			want.Stacks[i].Subnet = wishes[at]
		}
	}
	got, err := subnet.Allocate(s.pools, want, slices.Concat(used, others, s.Excluded(s.pools)))
	if err != nil {
		return nil, fmt.Errorf("node %q %w: %w", n.Name, errNoPodCIDR, s.Explain(err))
	}
	var subnets []netip.Prefix
	for _, st := range got.Stacks {
		if err := s.api.createClaim(ctx, s.claimSpace, n, st.Subnet); err != nil {
			return nil, err
		}
		subnets = append(subnets, st.Subnet)
	}
	return subnets, nil
}

// sortClaims gives the subnets to try first, which n claimed already or which are reserved for it, and those that
// others hold or held before and have pods of. Claims of an earlier Node object of this name are deleted, as the garbage collector is about to, and
// their subnets are tried first too: but they are free now, and whoever is quicker has them.
func (s *Store) sortClaims(ctx context.Context, n *node, all []claim) (wishes, used []netip.Prefix, err error) {
	var old []netip.Prefix
	for _, c := range all {
		p, ok := claimed(c.Name)
		switch {
		case !ok:
		case c.of(n):
			wishes = append(wishes, p)
		case !c.names(n):
			used = append(append(used, p), s.earlier(&c.ObjectMeta, p.String())...)
		default:
			if err := s.api.deleteClaim(ctx, s.claimSpace, c); err != nil {
				return nil, nil, err
			}
			old = append(old, p)
		}
	}
	return append(wishes, old...), used, nil
}

// release deletes n's claims on subnets that it does not have, if somebody else gave it its podCIDRs. What an
// administrator reserved for it stays.
func (s *Store) release(ctx context.Context, n *node) error {
	now, err := s.api.node(ctx, n.Name)
	if err != nil || now.UID != n.UID || now.Spec.podCIDRs() == "" {
		return err
	}
	all, err := s.api.listClaims(ctx, s.claimSpace)
	has := strings.Split(now.Spec.podCIDRs(), ",")
	for _, c := range all {
		p, ok := claimed(c.Name)
		if ok && c.of(now) && len(c.OwnerReferences) > 0 && !slices.Contains(has, p.String()) {
			err = errors.Join(err, s.api.deleteClaim(ctx, s.claimSpace, c))
		}
	}
	return err
}

// assignedCIDRs returns what nodes have, from claims or from a controller that ran earlier, and the subnets of before of which
// they say that they have pods.
func (s *Store) assignedCIDRs(ctx context.Context) ([]netip.Prefix, error) {
	var all []netip.Prefix
	_, err := s.api.nodes(ctx, func(m *metav1.ObjectMeta, podCIDRs string) {
		if m.Name != s.node {
			all = append(all, s.earlier(m, podCIDRs)...)
		}
		for text := range strings.SplitSeq(podCIDRs, ",") {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, p.Masked())
			}
		}
	})
	return all, kubeclient.Explain("list", "nodes", err)
}

// earlier returns the subnets of before that a Node or its Lease object names. What cannot be read names none.
func (s *Store) earlier(m *metav1.ObjectMeta, podCIDRs string) []netip.Prefix {
	r := s.annotations.record(m)
	r.podCIDRs = podCIDRs
	l, err := s.annotations.lease(r)
	if err != nil {
		return nil
	}
	return l.EarlierIn(s.pools)
}

// errClaimed is the error for a claim that exists and is another node's.
var errClaimed = errors.New("it is claimed")

// claim is a Lease of coordination.k8s.io, as far as it is used.
type claim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		HolderIdentity *string `json:"holderIdentity,omitempty"`
	} `json:"spec"`
}

// names reports whether c's holder is a node of n's name: n, or an earlier Node object.
func (c claim) names(n *node) bool {
	return c.Spec.HolderIdentity != nil && *c.Spec.HolderIdentity == n.Name
}

// of reports whether c is n's: it claimed it, or an administrator reserved it for n's name.
func (c claim) of(n *node) bool {
	foreign := func(o metav1.OwnerReference) bool { return o.UID != n.UID }
	return c.names(n) && !slices.ContainsFunc(c.OwnerReferences, foreign)
}

// leases turns a request to the Leases of a namespace.
func leases(r *rest.Request, namespace string) *rest.Request {
	return r.AbsPath("/apis/coordination.k8s.io/v1").Namespace(namespace).Resource("leases")
}

func (c *client) listClaims(ctx context.Context, namespace string) ([]claim, error) {
	var list struct{ Items []claim }
	err := do(ctx, leases(c.rest.Get(), namespace), kubeclient.CallTimeout, &list)
	return list.Items, kubeclient.Explain("list", "leases in namespace "+namespace, err)
}

// newClaim returns n's claim on p.
func newClaim(n *node, p netip.Prefix) claim {
	c := claim{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: claimName(p),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}}}
	c.Spec.HolderIdentity = &n.Name
	return c
}

// createClaim claims p for n; one that exists is as good if it is n's. What was listed before does not tell: it may
// have been deleted meanwhile, and another node's now.
func (c *client) createClaim(ctx context.Context, namespace string, n *node, p netip.Prefix) error {
	made := newClaim(n, p)
	err := c.create(ctx, leases(c.rest.Post(), namespace), made)
	if !apierrors.IsAlreadyExists(err) {
		return kubeclient.Explain("create", "leases in namespace "+namespace, err)
	}
	var there claim
	err = do(ctx, leases(c.rest.Get(), namespace).Name(made.Name), kubeclient.CallTimeout, &there)
	switch {
	case apierrors.IsNotFound(err):
		return errClaimed // it is free again, or was never there: the next list says so
	case err != nil:
		return kubeclient.Explain("get", "leases in namespace "+namespace, err)
	case !there.of(n):
		return errClaimed
	}
	return nil
}

// deleteClaim deletes the claim as it was read, and no newer one.
func (c *client) deleteClaim(ctx context.Context, namespace string, old claim) error {
	ctx, cancel := context.WithTimeout(ctx, kubeclient.CallTimeout)
	defer cancel()
	only := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(old.UID))}
	err := c.Metadata.Resource(leasesResource).Namespace(namespace).Delete(ctx, old.Name, only)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return kubeclient.Explain("delete", "leases in namespace "+namespace, err)
}

// setPodCIDRs writes the node's podCIDRs. The API server lets that happen once in a node's life; the UID makes sure
// that it is this life.
func (c *client) setPodCIDRs(ctx context.Context, n *node, cidrs []netip.Prefix) error {
	texts := make([]string, len(cidrs))
	for i, p := range cidrs {
		texts[i] = p.String()
	}
	err := c.patch(ctx, c.Metadata.Resource(nodesResource), n.Name, types.MergePatchType, map[string]any{
		"metadata": map[string]any{"uid": n.UID}, "spec": map[string]any{"podCIDR": texts[0], "podCIDRs": texts}})
	if apierrors.IsInvalid(err) || apierrors.IsConflict(err) {
		return fmt.Errorf("node %q changed while its podCIDR was written: %w", n.Name, err) // not terminal: look again
	}
	return kubeclient.Explain("patch", "nodes", err)
}
