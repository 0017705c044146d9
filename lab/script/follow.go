package script

import (
	"bufio"
	"bytes"
	"slices"
	"strings"

	"golang.org/x/tools/txtar"
	"rsc.io/script"
)

// Step is a command that a script is about to run.
type Step struct {
	Line    int    // in the script, from 1
	Section string // the comment above it
	Command string // with its arguments, as they are written
	Dir     string // the script's directory; empty: it does not run
}

// checks are the commands that look at what the one before has done, and print nothing.
var checks = []string{"stdout", "stderr", "grep", "cmp", "cmpenv", "exists", "keep"}

// Check reports whether the step does nothing but look at what the one before has done.
func (s Step) Check() bool { return slices.Contains(checks, s.verb()) }

// verb returns the command's name, without what says when it runs and how it ends.
func (s Step) verb() string {
	for word := range strings.FieldsSeq(s.Command) {
		if word != "!" && word != "?" && !strings.HasPrefix(word, "[") {
			return word
		}
	}
	return ""
}

// Follower is told of each command of a script.
type Follower interface {
	// Before is called before a command. Its error ends the script.
	Before(Step) error
	// After is called with what it printed, and why it failed.
	After(s Step, output string, err error)
}

// Steps are a script's commands in the order in which they stand there.
func Steps(data []byte) (steps []Step) {
	section, line, comments := "", 0, false
	for s := bufio.NewScanner(bytes.NewReader(txtar.Parse(data).Comment)); s.Scan(); {
		line++
		text := strings.TrimSpace(s.Text())
		switch comment, ok := strings.CutPrefix(text, "#"); {
		case ok && comments:
			section += " " + strings.TrimSpace(comment)
		case ok:
			section = strings.TrimSpace(comment)
		case text != "":
			steps = append(steps, Step{Line: line, Section: section, Command: text})
		}
		comments = strings.HasPrefix(text, "#")
	}
	return steps
}

// followed is a command that tells a follower.
type followed struct {
	script.Cmd
	name   string
	course *course
}

// course is how far a script has come. The engine does not say which line it runs, but it runs them in order.
type course struct {
	Follower
	left []Step
}

// at returns the next step with a command of that name. Lines before it were left out by their conditions.
func (c *course) at(name string) Step {
	for i, s := range c.left {
		if s.verb() == name {
			c.left = c.left[i+1:]
			return s
		}
	}
	return Step{Command: name}
}

func (f followed) Run(s *script.State, args ...string) (script.WaitFunc, error) {
	step := f.course.at(f.name)
	step.Dir = s.Getwd()
	if err := f.course.Before(step); err != nil {
		return nil, err
	}
	wait, err := f.Cmd.Run(s, args...)
	if wait == nil || err != nil {
		f.course.After(step, "", err)
		return wait, err
	}
	return func(s *script.State) (string, string, error) {
		out, errOut, err := wait(s)
		f.course.After(step, out+errOut, err)
		return out, errOut, err
	}, nil
}

// tell has the engine's commands tell the runner's follower.
func (r *run) tell(data []byte) {
	if r.Follower == nil {
		return
	}
	c := &course{r.Follower, Steps(data)}
	for name, cmd := range r.engine.Cmds {
		r.engine.Cmds[name] = followed{cmd, name, c}
	}
}
