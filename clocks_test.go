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

// TestClocks: no test judges the wall clock. Outside of testing/synctest, whose clock is exact, and of benchmarks, a
// test neither compares what time has passed with a bound in order to fail, nor sleeps: testwait.Until waits for what
// happens, and testwait.Pause says why nothing else can be waited for. What counts causes (events, rounds, messages)
// is true at any pace.
func TestClocks(t *testing.T) {
	folders := map[string]map[string]*ast.File{}
	files := token.NewFileSet()
	for _, path := range sourceFiles(t, ".go") {
		if !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(path, "test/") {
			continue
		}
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(path)
		if folders[dir] == nil {
			folders[dir] = map[string]*ast.File{}
		}
		folders[dir][path] = f
	}
	bubbles := 0
	for dir, in := range folders {
		fake := bubbled(in)
		bubbles += len(fake)
		if slices.Contains(generators, dir) {
			continue
		}
		for _, f := range in {
			for pos, what := range clocks(f, fake) {
				t.Errorf("%s: %s", files.Position(pos), what)
			}
		}
	}
	if bubbles < 100 {
		t.Errorf("%d functions with a fake clock found, there are more: this test does not see them", bubbles)
	}
}

// TestClocksFinds: each kind of judging the clock is found, and nothing in a bubble or a benchmark.
func TestClocksFinds(t *testing.T) {
	for body, want := range map[string]int{
		"time.Sleep(1)": 1,
		"if took := time.Since(began); took > 1 { t.Error() }":    1,
		"took := time.Since(began); if took > 1 { t.Fatal() }":    1,
		"if time.Now().After(end) { t.Fatal() }":                  1,
		"select { case <-time.After(1): t.Fatal() }":              1,
		"select { case <-time.After(testwait.Limit): t.Fatal() }": 0,
		"synctest.Test(t, func(t *testing.T) { time.Sleep(1) })":  0,
		"t.Log(time.Since(began))":                                0,
	} {
		for params, want := range map[string]int{"t *testing.T": want, "t *testing.B": 0} {
			f, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc TestX("+params+") { "+body+" }", parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(clocks(f, bubbled(map[string]*ast.File{"": f}))); got != want {
				t.Errorf("%d places in %q with %s, want %d", got, body, params, want)
			}
		}
	}
}

// generators run for a given time, and measure what they find: their rounds are no assertions of make test.
var generators = []string{"test/soak", "test/drift", "test/causes", "test/peers", "test/datapath", "test/scale", "test/guest"}

// span is a piece of source.
type span struct{ from, to token.Pos }

func (s span) has(n ast.Node) bool { return s.from <= n.Pos() && n.End() <= s.to }

// bubbled are the places of a folder whose clock is testing/synctest's: functions given to synctest.Test or to one that
// calls it, those that call synctest.Wait, and those that are named nowhere else.
func bubbled(in map[string]*ast.File) []span {
	var fake []span
	functions, uses := map[string][]*ast.FuncDecl{}, map[string][]ast.Node{}
	var calls []*ast.CallExpr
	for _, f := range in {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				calls = append(calls, n)
				if isCall(n, "synctest", "Test") && len(n.Args) == 2 {
					fake = append(fake, span{n.Args[1].Pos(), n.Args[1].End()})
				}
			case *ast.FuncDecl:
				functions[n.Name.Name] = append(functions[n.Name.Name], n)
				if n.Body != nil && slices.ContainsFunc(n.Body.List, waitsInBubble) {
					fake = append(fake, span{n.Pos(), n.End()})
				}
			case *ast.Ident:
				uses[n.Name] = append(uses[n.Name], n)
			}
			return true
		})
	}
	for _, c := range calls { // functions given to one that calls them in a bubble
		id, ok := c.Fun.(*ast.Ident)
		if !ok || !slices.ContainsFunc(functions[id.Name], opensBubble) {
			continue
		}
		for _, a := range c.Args {
			if _, ok := a.(*ast.FuncLit); ok {
				fake = append(fake, span{a.Pos(), a.End()})
			}
		}
	}
	for changed := true; changed; {
		changed = false
		for name, declared := range functions {
			for _, d := range declared {
				body := span{d.Pos(), d.End()}
				if slices.Contains(fake, body) || d.Recv == nil && (isTestName(name) || name == "TestMain") {
					continue
				}
				others := slices.DeleteFunc(slices.Clone(uses[name]), func(n ast.Node) bool { return n == d.Name || body.has(n) })
				for _, same := range declared {
					others = slices.DeleteFunc(others, func(n ast.Node) bool { return n == same.Name })
				}
				inside := func(n ast.Node) bool { return slices.ContainsFunc(fake, func(s span) bool { return s.has(n) }) }
				if len(others) > 0 && !slices.ContainsFunc(others, func(n ast.Node) bool { return !inside(n) }) {
					fake, changed = append(fake, body), true
				}
			}
		}
	}
	return fake
}

// waitsInBubble reports whether a statement is synctest.Wait, which works in a bubble only.
func waitsInBubble(s ast.Stmt) bool {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := e.X.(*ast.CallExpr)
	return ok && isCall(call, "synctest", "Wait")
}

// opensBubble reports whether a function calls synctest.Test.
func opensBubble(fn *ast.FuncDecl) bool {
	found := false
	ast.Inspect(fn, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		found = found || ok && isCall(call, "synctest", "Test")
		return !found
	})
	return found
}

func isTestName(name string) bool {
	return strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Benchmark") || strings.HasPrefix(name, "Fuzz")
}

func isCall(call *ast.CallExpr, pkg, name string) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	id, ok := s.X.(*ast.Ident)
	return ok && id.Name == pkg
}

// clocks are the places of f, outside of the spans, that sleep or fail a test for the time that has passed.
func clocks(f *ast.File, fake []span) map[token.Pos]string {
	places := map[token.Pos]string{}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil || takesB(fn) {
			continue
		}
		passed := map[string]bool{}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if n != nil && slices.ContainsFunc(fake, func(s span) bool { return s.has(n) }) {
				return false
			}
			switch n := n.(type) {
			case *ast.AssignStmt:
				for i, e := range n.Rhs {
					if id, ok := n.Lhs[min(i, len(n.Lhs)-1)].(*ast.Ident); ok && readsClock(e, passed) {
						passed[id.Name] = true
					}
				}
			case *ast.SelectorExpr:
				if isTime(n, "Sleep") {
					places[n.Pos()] = "time.Sleep: use testwait.Until, or testwait.Pause with the reason"
				}
			case *ast.IfStmt:
				if init, ok := n.Init.(*ast.AssignStmt); ok && readsClock(init.Rhs[0], passed) {
					passed[init.Lhs[0].(*ast.Ident).Name] = true
				}
				switch {
				case !fails(n.Body):
				case compares(n.Cond, passed):
					places[n.Pos()] = "a test judges the time that has passed: count causes, or make it a benchmark"
				case asksClock(n.Cond):
					places[n.Pos()] = "a deadline of its own: use testwait.Until"
				}
			case *ast.CommClause:
				if afterShort(n.Comm) && fails(&ast.BlockStmt{List: n.Body}) {
					places[n.Pos()] = "a deadline of its own: wait for testwait.Limit"
				}
			}
			return true
		})
	}
	return places
}

// takesB reports whether a function belongs to a benchmark.
func takesB(fn *ast.FuncDecl) bool {
	for _, p := range fn.Type.Params.List {
		if s, ok := p.Type.(*ast.StarExpr); ok {
			if sel, ok := s.X.(*ast.SelectorExpr); ok && sel.Sel.Name == "B" {
				return true
			}
		}
	}
	return false
}

// readsClock reports whether e is time that has passed: time.Since, the Sub of two moments, or a variable of those.
func readsClock(e ast.Expr, passed map[string]bool) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Sub" && len(n.Args) == 1 {
				inner, isCallToo := n.Args[0].(*ast.Ident)
				found = found || isCallToo && (strings.HasPrefix(inner.Name, "beg") || strings.HasPrefix(inner.Name, "start"))
			}
		case *ast.SelectorExpr:
			found = found || isTime(n, "Since")
		case *ast.Ident:
			found = found || passed[n.Name]
		}
		return !found
	})
	return found
}

// compares reports whether a condition orders time that has passed.
func compares(cond ast.Expr, passed map[string]bool) bool {
	found := false
	ast.Inspect(cond, func(n ast.Node) bool {
		if b, ok := n.(*ast.BinaryExpr); ok && slices.Contains([]token.Token{token.LSS, token.GTR, token.LEQ, token.GEQ}, b.Op) {
			found = found || readsClock(b.X, passed) || readsClock(b.Y, passed)
		}
		return !found
	})
	return found
}

// fails reports whether a body fails a test.
func fails(body *ast.BlockStmt) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			found = found || slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf"}, s.Sel.Name)
		}
		return !found
	})
	return found
}

// asksClock reports whether a condition asks whether a moment is over: time.Now().After(end).
func asksClock(cond ast.Expr) bool {
	found := false
	ast.Inspect(cond, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && (s.Sel.Name == "After" || s.Sel.Name == "Before") {
			now, ok := s.X.(*ast.CallExpr)
			found = found || ok && isTime(now.Fun, "Now")
		}
		return !found
	})
	return found
}

// afterShort reports whether a case of a select waits for time.After, but not of testwait.Limit.
func afterShort(comm ast.Stmt) bool {
	e, ok := comm.(*ast.ExprStmt)
	if !ok {
		return false
	}
	receive, ok := e.X.(*ast.UnaryExpr)
	if !ok {
		return false
	}
	after, ok := receive.X.(*ast.CallExpr)
	if !ok || !isTime(after.Fun, "After") {
		return false
	}
	limit, ok := after.Args[0].(*ast.SelectorExpr)
	return !ok || limit.Sel.Name != "Limit"
}
