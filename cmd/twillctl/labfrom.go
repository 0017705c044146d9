package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/rebuild"
	"github.com/twill-net/twill/target"
)

// registerFrom adds --from. Flags that say what the report says are refused beside it.
func (f *upFlags) registerFrom(c *cobra.Command) {
	c.Flags().StringVar(&f.from, "from", "",
		"a file that twillctl report wrote: the nodes, leases and config that it holds, and the node that it is of as it was")
	for _, other := range []string{"nodes", "backend", "direct-routing", "family", "net-conf", "names", "subnet"} {
		c.MarkFlagsMutuallyExclusive("from", other)
	}
}

// readFrom completes the spec with what the report of --from says.
func (f *upFlags) readFrom(c *cobra.Command) error {
	if f.from == "" {
		return nil
	}
	if !c.Flags().Changed("pods") {
		f.spec.Pods = 0 // as many as the report's node has
	}
	members, err := target.ReadReport(f.from)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	for _, m := range members {
		files[m.Name] = m.Data
	}
	if f.report, err = rebuild.Read(files); err == nil {
		f.spec, err = f.report.Spec(f.spec)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", f.from, err)
	}
	return nil
}

// maxLeft is how many things that were not carried over are named.
const maxLeft = 30

// apply brings the node of --from to the state that it had, and says what is not as it was.
func (f *upFlags) apply(ctx context.Context, c *cobra.Command, l *lab.Lab) error {
	if f.report == nil {
		return nil
	}
	if err := f.report.Apply(ctx, l); err != nil {
		return err
	}
	left := f.report.Left()
	for _, what := range left[:min(len(left), maxLeft)] {
		fmt.Fprintln(c.ErrOrStderr(), "not carried over:", what)
	}
	if n := len(left) - maxLeft; n > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "not carried over: %d more\n", n)
	}
	return nil
}
