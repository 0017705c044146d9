package twill_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// ofLabs are the files of twillctl that are about labs alone: the commands of "twillctl lab", what they need, and what
// the page does in one.
var ofLabs = []string{"cmd/twillctl/lab*.go", "cmd/twillctl/rootless.go", "cmd/twillctl/uiteach.go"}

// TestOneTarget: no command, and nothing of the page, does one thing for a lab, another for a cluster and a third for this
// machine. All ask a target.Target, and target.Flags alone says which one it is: the others do not open labs, do not run
// kubectl, and do not ask what kind of target they have.
func TestOneTarget(t *testing.T) {
	asking := 0
	for _, path := range sourceFiles(t, ".go") {
		in := filepath.Dir(path)
		if in != "cmd/twillctl" && in != "ui" || strings.HasSuffix(path, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			switch i.Path.Value {
			case `"` + module + `target"`:
				asking++
			case `"` + module + `lab"`:
				if !fits(path, ofLabs) {
					t.Errorf("%s opens labs: only package target does, and %v", files.Position(i.Pos()), ofLabs)
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if n.Value == `"kubectl"` {
					t.Errorf("%s runs kubectl: only target.Cluster does", files.Position(n.Pos()))
				}
			case *ast.BinaryExpr:
				if isKind(n.X) || isKind(n.Y) {
					t.Errorf("%s asks what kind of target it has: want a method of target.Target", files.Position(n.Pos()))
				}
			case *ast.SwitchStmt:
				if isKind(n.Tag) {
					t.Errorf("%s asks what kind of target it has: want a method of target.Target", files.Position(n.Pos()))
				}
			}
			return true
		})
	}
	if asking < 10 {
		t.Errorf("%d files ask a target, there are more: this test does not see them", asking)
	}
}

// isKind reports whether an expression is the kind that a View has.
func isKind(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "Kind" {
		return false
	}
	switch x := s.X.(type) {
	case *ast.CallExpr:
		of, ok := x.Fun.(*ast.SelectorExpr)
		return ok && of.Sel.Name == "View"
	case *ast.Ident:
		return x.Name == "view"
	}
	return false
}

// fits reports whether a path fits one of the patterns.
func fits(path string, patterns []string) bool {
	for _, p := range patterns {
		if ok, err := filepath.Match(p, path); ok && err == nil {
			return true
		}
	}
	return false
}
