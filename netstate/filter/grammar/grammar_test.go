package grammar

import (
	"strings"
	"testing"
)

// TestNext: the longest clause wins, and a clause that lacks its argument is none.
func TestNext(t *testing.T) {
	for rule, want := range map[string]Clause{
		"saddr . daddr @self accept": {Words: "saddr . daddr", Arg: "@self"}, "saddr @x accept": {Words: "saddr", Arg: "@x"},
		"saddr vmap @egress": {Words: "saddr vmap", Arg: "@egress", End: true}, "daddr . proto . port @p drop": {Words: "daddr . proto . port", Arg: "@p"},
		"counter drop": {Words: "counter"}, "drop": {Words: "drop", End: true}, "goto in-1": {Words: "goto", Arg: "in-1", End: true},
		"goto": {}, "": {}, "tcp": {}, "reject": {},
	} {
		got, rest := Next(strings.Fields(rule))
		all := strings.Join(append(strings.Fields(got.Words+" "+got.Arg), rest...), " ")
		if got != want || all != rule {
			t.Errorf("%q: got %+v and then %q", rule, got, rest)
		}
	}
}
