package policy

import "context"

// Source keeps a Snapshot up to date.
type Source interface {
	// Watch calls f with what changed, one call after the other, until ctx is done or an error that waiting does not
	// mend. The first call comes when the source has everything; while the source is away nothing changes.
	Watch(ctx context.Context, f func(Change)) error
}

// Change is what changed since the Change before. The first one has Rules set and no Pods.
type Change struct {
	Rules bool // policies, or namespaces or their labels, changed: rules have to be made again
	Pods  []PodChange

	// Snapshot returns everything as it is after this Change. It may be called at any time from anywhere; a late call may
	// return what later Changes made of it, so that applying these must do no harm then.
	Snapshot func() Snapshot
}

// PodChange is a pod that appeared (Was is nil), changed or is gone (Now is nil). A pod that was deleted and created
// again under its name is two of them. Pods in the host's network and those that have ended do not appear.
type PodChange struct {
	Was, Now *Pod
}
