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

// readers are the folders whose programs run on nodes, beside what others write.
var readers = []string{"agent/", "backend/", "cloud/", "clouds/", "cmd/twill/", "cmd/twilld/", "internal/", "netstate/", "plugin/", "policy/", "subnet/"}

// TestFiles: what runs on a node reads files with internal/smallfile, which never waits for a named pipe and never reads
// a terabyte. The kernel's own files, by a constant path, are what they are.
func TestFiles(t *testing.T) {
	kernels := 0
	for _, path := range sourceFiles(t, ".go") {
		reads := slices.ContainsFunc(readers, func(folder string) bool { return strings.HasPrefix(path, folder) }) && !within(filepath.Dir(path), machines)
		if !reads || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "test/") || path == "internal/smallfile/smallfile.go" {
			continue
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			switch {
			case !ok || !isReadFile(call.Fun):
			case isKernels(call.Args[0]):
				kernels++
			default:
				t.Errorf("%s: os.ReadFile: use smallfile.Read, or ReadUnlinked where nobody may put a link", files.Position(n.Pos()))
			}
			return true
		})
	}
	if kernels == 0 {
		t.Error("no file of the kernel's is read: this test does not see them")
	}
}

func isReadFile(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "ReadFile" {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == "os"
}

// isKernels reports whether an expression is a path that begins with a constant /proc/ or /sys/.
func isKernels(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return isKernels(e.X)
	case *ast.BasicLit:
		return strings.HasPrefix(e.Value, `"/proc/`) || strings.HasPrefix(e.Value, `"/sys/`)
	}
	return false
}
