package enforced

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/doctor/facts"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
)

// settled returns when the rules of all nodes are those that the manifests ask for.
func settled(t testing.TB, l *lab.Lab) {
	t.Helper()
	for _, n := range l.Nodes() {
		testwait.Nil(t, "the rules of the policies on "+n.Name, func() error {
			f, err := gather(t, l, n)
			unread := strings.Join(f.Unread, "\n")
			if err == nil && (f.Policies.Snapshot == nil || len(f.Policies.Plan) > 0 || strings.Contains(unread, "network policies")) {
				err = fmt.Errorf("they are not as they should be, unread: %s:\n%v", unread, f.Policies.Plan)
			}
			return err
		})
	}
}

// gather returns what the doctor knows of a node.
func gather(t testing.TB, l *lab.Lab, n *lab.Node) (f doctor.Facts, err error) {
	t.Helper()
	o := facts.Options{Checkpoint: n.CheckpointFile(), SubnetFile: n.SubnetFile(), CNIDir: n.Dir(),
		BinDir: filepath.Dir(l.Spec().Programs.Plugin), CNICache: n.CNICache()}
	err = n.Do(func() (err error) {
		f, err = facts.Gather(t.Context(), o)
		return err
	})
	return f, err
}
