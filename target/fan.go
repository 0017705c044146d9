package target

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/doctor"
)

// maxConcurrent is how many nodes are asked at the same time.
const maxConcurrent = 16

// fan is several nodes, which are asked at the same time.
type fan struct {
	// nodes returns the names of the nodes that are there now, and each node by its name.
	nodes func(context.Context) (names []string, node func(name string) Node, err error)
	// one returns the node that is meant where one has to be.
	one func(context.Context) (Node, error)
}

// answer is what a node answers, or why it does not.
type answer[T any] struct {
	node string
	it   T
	err  error
}

// ask asks all nodes. The error is that of finding them, or of a context that ended.
func ask[T any](ctx context.Context, f fan, question func(Node) (T, error)) ([]answer[T], error) {
	names, node, err := f.nodes(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]answer[T], len(names))
	var g errgroup.Group
	g.SetLimit(maxConcurrent)
	for i, name := range names {
		g.Go(func() error {
			it, err := question(node(name))
			all[i] = answer[T]{name, it, err}
			return nil
		})
	}
	_ = g.Wait() // errors are in the answers
	return all, ctx.Err()
}

// gathered returns the answers that there are. silent has the other nodes, each with the reason.
func gathered[T any](all []answer[T]) (those []T, silent []string) {
	for _, a := range all {
		if a.err != nil {
			silent = append(silent, a.node+": "+a.err.Error())
			continue
		}
		those = append(those, a.it)
	}
	return those, silent
}

// joined asks all nodes, and joins what they say of themselves.
func joined[T any](ctx context.Context, f fan, question func(Node) ([]T, error)) (all []T, silent []string, err error) {
	answers, err := ask(ctx, f, question)
	each, silent := gathered(answers)
	return append([]T{}, slices.Concat(each...)...), silent, err
}

func (f fan) Names(ctx context.Context) ([]string, error) {
	names, _, err := f.nodes(ctx)
	return names, err
}

func (f fan) Status(ctx context.Context) (doctor.StatusReport, error) {
	all, silent, err := joined(ctx, f, func(n Node) ([]doctor.Status, error) {
		r, err := n.Status(ctx)
		return r.Nodes, err
	})
	return doctor.StatusReport{Schema: doctor.Schema, Nodes: all, Silent: silent}, err
}

func (f fan) History(ctx context.Context, since time.Duration) (doctor.HistoryReport, error) {
	all, silent, err := joined(ctx, f, func(n Node) ([]doctor.NodeHistory, error) {
		r, err := n.History(ctx, since)
		return r.Nodes, err
	})
	return doctor.HistoryReport{Schema: doctor.Schema, Nodes: all, Silent: silent}, err
}

func (f fan) FastPath(ctx context.Context) (FastPathReport, error) {
	all, silent, err := joined(ctx, f, func(n Node) ([]FastPath, error) {
		r, err := n.FastPath(ctx)
		return r.Nodes, err
	})
	return FastPathReport{Schema: doctor.Schema, Nodes: all, Silent: silent}, err
}

// PauseFastPath returns what each node said. None of them is left out because another does not obey.
func (f fan) PauseFastPath(ctx context.Context, pause time.Duration) (said []Said, err error) {
	all, err := ask(ctx, f, func(n Node) ([]Said, error) { return n.PauseFastPath(ctx, pause) })
	for _, a := range all {
		if a.err != nil {
			said = append(said, Said{Node: a.node, Err: a.err})
		}
		said = append(said, a.it...)
	}
	return said, err
}

func (f fan) Plan(ctx context.Context) (Plan, error) {
	n, err := f.one(ctx)
	if err != nil {
		return Plan{}, err
	}
	return n.Plan(ctx)
}

func (f fan) Report(ctx context.Context, log string) (Bundle, error) {
	n, err := f.one(ctx)
	if err != nil {
		return nil, err
	}
	return n.Report(ctx, log)
}
