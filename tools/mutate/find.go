package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// mutant is one edit of one file: the bytes from start to end become text.
type mutant struct {
	file       string // absolute
	function   string // empty outside of functions
	source     []byte // of the file
	line       int
	start, end int
	old, text  string
}

func (m mutant) String() string {
	wd, _ := os.Getwd()
	name, err := filepath.Rel(wd, m.file)
	if err != nil {
		name = m.file
	}
	return fmt.Sprintf("%s:%d: %s", name, m.line, m.change())
}

// change says what m does, without where.
func (m mutant) change() string {
	old := strings.Join(strings.Fields(m.old), " ")
	if len(old) > 100 {
		old = old[:100] + "…"
	}
	if m.text == "" {
		return "without " + old
	}
	return m.text + " in place of " + old
}

// find returns the mutants of the package in dir, as it is built here.
func find(dir string) ([]mutant, error) {
	list := exec.Command("go", "list", "-json=Dir,GoFiles", ".")
	list.Dir, list.Stderr = dir, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	var pkg struct {
		Dir     string
		GoFiles []string
	}
	if err := json.Unmarshal(out, &pkg); err != nil {
		return nil, err
	}
	f := finder{files: token.NewFileSet()}
	for _, name := range pkg.GoFiles {
		f.path = filepath.Join(pkg.Dir, name)
		if f.source, err = os.ReadFile(f.path); err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(f.files, f.path, f.source, 0)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			f.function = ""
			if function, ok := d.(*ast.FuncDecl); ok {
				f.function = function.Name.Name
			}
			ast.Inspect(d, f.visit)
		}
	}
	return f.mutants, nil
}

type finder struct {
	files    *token.FileSet
	path     string
	function string
	source   []byte
	mutants  []mutant
}

// add makes a mutant of which n is text.
func (f *finder) add(n ast.Node, text string) { f.cut(n.Pos(), n.End(), text) }

func (f *finder) cut(from, to token.Pos, text string) {
	at := f.files.Position(from)
	end := f.files.Position(to).Offset
	f.mutants = append(f.mutants, mutant{file: f.path, function: f.function, source: f.source, line: at.Line,
		start: at.Offset, end: end, old: string(f.source[at.Offset:end]), text: text})
}

func (f *finder) text(n ast.Node) string {
	return string(f.source[f.files.Position(n.Pos()).Offset:f.files.Position(n.End()).Offset])
}

// others are comparisons that differ at the boundary.
var others = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok == token.CONST || n.Tok == token.VAR
	case *ast.IfStmt:
		f.add(n.Cond, "!("+f.text(n.Cond)+")")
		f.add(n.Cond, "false && ("+f.text(n.Cond)+")") // so that its variables stay used
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.BlockStmt:
		f.statements(n.List)
	case *ast.CaseClause:
		f.statements(n.Body)
	case *ast.CommClause:
		f.statements(n.Body)
	case *ast.ReturnStmt:
		if i := len(n.Results) - 1; i >= 0 && f.text(n.Results[i]) == "err" {
			f.add(n.Results[i], "nil")
		}
	case *ast.CompositeLit:
		f.fields(n)
	case *ast.CallExpr:
		return f.call(n)
	case *ast.BasicLit:
		f.number(n)
	case *ast.Ident:
		if other := map[string]string{"true": "false", "false": "true"}[n.Name]; other != "" {
			f.add(n, other)
		}
	}
	return true
}

func (f *finder) binary(n *ast.BinaryExpr) {
	if n.Op == token.LAND || n.Op == token.LOR {
		f.add(n, "("+f.text(n.X)+")")
		f.add(n, "("+f.text(n.Y)+")")
	}
	if other := others[n.Op]; other != "" {
		f.cut(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other)
	}
}

// logs are statements that only tell people something.
var logs = regexp.MustCompile(`(?i)\b(log|logger|say)\w*(\(\))?\.?\w*\(|\.(Debug|Info|Warn|Error|Print\w*)\(`)

// texts are calls whose arguments only people read.
var texts = regexp.MustCompile(
	`^(fmt\.Errorf|errors\.New)$|(?i:^|\.)(log|logger|say)\w*$|\.(Debug|Info|Warn|Error|Print\w*)$`,
)

// call leaves out the capacities of slices and maps, and what errors and logs say, but not functions in it.
// It reports whether all parts of n are still to be visited.
func (f *finder) call(n *ast.CallExpr) bool {
	var args []ast.Expr
	switch {
	case f.text(n.Fun) == "make":
		args = sized(n.Args)
	case texts.MatchString(f.text(n.Fun)):
		for _, arg := range n.Args {
			if function, ok := arg.(*ast.FuncLit); ok {
				args = append(args, function)
			}
		}
	default:
		return true
	}
	for _, arg := range args {
		ast.Inspect(arg, f.visit)
	}
	return false
}

// sized are the arguments of make without the capacity of a slice or a map; a channel's is behaviour.
func sized(args []ast.Expr) []ast.Expr {
	switch args[0].(type) {
	case *ast.MapType:
		return args[:1]
	case *ast.ArrayType:
		return args[:2]
	}
	return args
}

// statements leaves out one statement at a time, unless others need what it declares.
func (f *finder) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt, *ast.BranchStmt:
		default:
			continue
		}
		if !logs.MatchString(f.text(s)) {
			f.add(s, "")
		}
	}
}

// fields leaves out one named field of a struct, or entry of a map, at a time.
func (f *finder) fields(n *ast.CompositeLit) {
	for i, e := range n.Elts {
		if _, ok := e.(*ast.KeyValueExpr); !ok {
			continue
		}
		if i+1 < len(n.Elts) {
			f.cut(e.Pos(), n.Elts[i+1].Pos(), "")
		} else {
			f.add(e, "")
		}
	}
}

// number changes a number so much that it matters, whether it is a count, a mode or a number of seconds.
func (f *finder) number(n *ast.BasicLit) {
	if n.Kind != token.INT {
		return
	}
	if v, err := strconv.ParseUint(n.Value, 0, 32); err == nil {
		f.add(n, strconv.FormatUint(4*v+1, 10))
	}
}
