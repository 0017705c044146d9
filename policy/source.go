package policy

import "context"

// Source keeps up with a cluster, and gathers what changed there until that is taken.
type Source interface {
	// Watch calls notify whenever there may be a Change to take, until ctx is done or an error that waiting does not mend. While
	// the cluster is away nothing changes. Notify returns at once, and takes nothing. Watch is called once.
	Watch(ctx context.Context, notify func()) error
	// Take returns what changed since the last Change that was taken, and whether that is anything. Before the source has
	// everything, nothing changed. One goroutine may call it, at any time.
	Take() (Change, bool)
}

// Change is what changed since the Change before. The first one has Rules set and no Pods.
type Change struct {
	Rules bool // policies, or namespaces or their labels, changed: rules have to be made again
	Pods  []PodChange

	// Snapshot returns everything as it is after the last Change that was taken. It may be called at any time from anywhere.
	Snapshot func() Snapshot
}

// PodChange is a pod that appeared (Was is nil), changed or is gone (Now is nil). A pod that was deleted and created
// again under its name is two of them. Pods in the host's network and those that have ended do not appear.
type PodChange struct {
	Was, Now *Pod
}
