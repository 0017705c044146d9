package kubeclient

import (
	"errors"
	"fmt"
	"testing"
)

// TestProgress: a reason is told of once, until it is another or all is well.
func TestProgress(t *testing.T) {
	var told []string
	p := Progress{Waiting: func(task string, err error) { told = append(told, fmt.Sprintf("%s: %v", task, err)) }}
	for i, step := range []struct {
		task string
		err  error
		news bool
	}{
		{"a", nil, false}, {"a", errors.New("x"), true}, {"a", errors.New("x"), false}, {"b", errors.New("x"), true},
		{"a", errors.New("y"), true}, {"a", nil, true}, {"a", nil, false}, {"a", errors.New("y"), true},
	} {
		if news := p.Report(step.task, step.err); news != step.news {
			t.Errorf("step %d: news %t, want %t", i, news, step.news)
		}
	}
	if got := fmt.Sprint(told); got != "[a: x b: x a: y a: <nil> a: y]" {
		t.Errorf("told %s", got)
	}
	if !(&Progress{}).Report("a", errors.New("x")) {
		t.Error("it is no news to nobody")
	}
}
