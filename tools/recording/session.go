package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// step is a command, and which lines of its output are shown.
type step struct {
	command string // as the picture shows it; empty: a blank line
	show    *regexp.Regexp
}

// line is one of the picture's.
type line struct {
	text string
	at   time.Duration // when it lights up
}

// perLine is the time to read a line.
const perLine = 250 * time.Millisecond

// omitted stands for lines that are not shown.
const omitted = "⋮"

// parse reads a session. main's comment and the session's own first lines tell its form.
func parse(text string) ([]step, error) {
	var all []step
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\n")
		command, isCommand := strings.CutPrefix(l, "$ ")
		pattern, isPattern := strings.CutPrefix(l, ": ")
		switch {
		case strings.HasPrefix(l, "#"):
		case l == "":
			all = append(all, step{})
		case isCommand:
			all = append(all, step{command: command})
		case isPattern && len(all) > 0 && all[len(all)-1].command != "":
			show, err := regexp.Compile(pattern)
			if err != nil {
				return nil, err
			}
			all[len(all)-1].show = show
		default:
			return nil, fmt.Errorf("%q: want $ and a command, or after one : and a regular expression", l)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("there is no command")
	}
	return all, nil
}

// record runs the commands, with a pause before each, and returns the lines of the picture.
func record(ctx context.Context, twillctl string, steps []step, pause time.Duration) ([]line, error) {
	var all []line
	var now time.Duration
	for _, s := range steps {
		if s.command == "" {
			all = append(all, line{at: now})
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		all = append(all, line{text: "$ " + s.command, at: now + pause/2})
		now += pause
		out, took, err := s.run(ctx, twillctl)
		if err != nil {
			return nil, err
		}
		for _, l := range out {
			all = append(all, line{text: l.text, at: now + l.at})
		}
		now += took + time.Duration(len(out))*perLine
	}
	return all, nil
}

// run runs one command in the lab of this program. A command whose exit code is not 0 may be what the session is about.
func (s step) run(ctx context.Context, twillctl string) (shown []line, took time.Duration, err error) {
	command := strings.NewReplacer("sudo twillctl lab ", twillctl+" lab --name "+labName+" ", "sudo twillctl", twillctl,
		"--lab twill", "--lab "+labName).Replace(s.command)
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	var problems strings.Builder
	cmd.Stderr = &problems
	started := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", s.command, err)
	}
	shown, err = s.choose(out, started)
	took = time.Since(started)
	var exit *exec.ExitError
	if e := cmd.Wait(); e != nil && (!errors.As(e, &exit) || exit.ExitCode() != 1) {
		return nil, 0, fmt.Errorf("%s: %w: %s", s.command, e, problems.String())
	}
	if err == nil && s.show != nil && len(shown) == 0 {
		err = fmt.Errorf("%s printed nothing that matches %s: %s", s.command, s.show, problems.String())
	}
	return shown, took, err
}

// choose returns the lines that are shown, and where in between some are not.
func (s step) choose(out io.Reader, started time.Time) (shown []line, err error) {
	gap := false
	scan := bufio.NewScanner(out)
	for scan.Scan() {
		text := strings.TrimRight(scan.Text(), " ")
		switch {
		case s.show == nil || !s.show.MatchString(text):
			gap = gap || text != ""
			continue
		case gap && len(shown) > 0:
			shown = append(shown, line{omitted, time.Since(started)})
		}
		gap = false
		shown = append(shown, line{text, time.Since(started)})
	}
	return shown, scan.Err()
}
