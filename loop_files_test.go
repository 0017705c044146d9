package twill_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// loopFiles are those of package agent whose functions the loop calls: it waits for nothing but the kernel.
var loopFiles = []string{"reconcile.go", "incremental.go", "contention.go", "pacing.go", "peers.go", "claims.go", "networks.go", "report.go",
	"status.go", "history.go", "planner.go", "choice.go", "underlay.go", "kernel.go"}

// TestLoopWaits: the files of the loop import nothing that opens files, starts programs or speaks over a network, and take
// nothing of keptfile.
func TestLoopWaits(t *testing.T) {
	for _, name := range loopFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("agent", name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			path := strings.Trim(i.Path.Value, `"`)
			never := []string{"os", "os/exec", "io", "net", "net/http", module + "internal/smallfile", module + "internal/atomicfile", module + "agent/keptfile"}
			if slices.Contains(never, path) {
				t.Errorf("agent/%s imports %s: the loop waits for nothing but the kernel; give it to a goroutine, and take what comes of it as a fact",
					name, path)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "a" && slices.Contains([]string{"files", "Live", "writeEnv", "writeHanded", "saveCheckpoint", "count"}, s.Sel.Name) {
				t.Errorf("agent/%s uses a.%s, which waits for a disk", name, s.Sel.Name)
			}
			return true
		})
	}
}
