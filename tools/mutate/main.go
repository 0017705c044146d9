// Command mutate breaks a package in one place at a time and runs tests: a mutant that no test notices (a
// survivor) is a line that may be wrong unseen.
//
//	mutate [flags] PACKAGE[=TESTS,…][:RUN] …
//
// PACKAGE is a folder; TESTS are the folders whose tests are to notice, by default PACKAGE itself, and RUN
// chooses some of them as go test's -run does. Of all mutants of a
// package a sample is tried, which the seed decides. The source is not touched: the compiler gets a mutant by -overlay,
// also where a test builds programs. The tests run in network, mount and process namespaces of their own (so it needs
// root), where what a mutant does to the kernel stays. Two kinds of mutants are not counted: those that do not compile, and those
// that no test can notice because they do the same. People list the latter in the folder equivalent.
package main

import (
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"time"
)

func main() {
	o := options{out: os.Stdout, lists: lists}
	flag.IntVar(&o.n, "n", 10, "mutants to try of each package")
	flag.Uint64Var(&o.seed, "seed", 1, "which mutants")
	flag.DurationVar(
		&o.timeout,
		"timeout",
		5*time.Minute,
		"how long the tests of one mutant may take; one that takes longer is killed",
	)
	flag.StringVar(&o.at, "at", "", "try all mutants whose FILE:LINE matches this regexp, and no sample")
	min := flag.Float64("min", 0, "the percentage that has to be killed")
	flag.Parse()
	score, err := o.run(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	if score < *min {
		fmt.Fprintf(os.Stderr, "mutate: %.0f %% of the mutants are killed, want %.0f %%\n", score, *min)
		os.Exit(1)
	}
}

type options struct {
	out     io.Writer
	lists   fs.FS // of equivalent mutants
	n       int
	seed    uint64
	timeout time.Duration
	at      string
}

// result is what came of the mutants of one or more packages.
type result struct{ killed, survived, equivalent, broken int }

// score is a percentage.
func (r result) score() float64 {
	return 100 * float64(r.killed) / float64(max(1, r.killed+r.survived))
}

func (r result) String() string {
	return fmt.Sprintf("%d of %d killed, %.0f %%; %d equivalent, %d did not compile",
		r.killed, r.killed+r.survived, r.score(), r.equivalent, r.broken)
}

// run returns the percentage of mutants that were killed.
func (o options) run(args []string) (float64, error) {
	var all result
	var lines []string
	for _, arg := range args {
		arg, run, _ := strings.Cut(arg, ":")
		dir, list, _ := strings.Cut(arg, "=")
		tests := []string{dir}
		if list != "" {
			tests = strings.Split(list, ",")
		}
		r, err := o.try(dir, tests, run)
		if err != nil {
			return 0, err
		}
		lines = append(lines, fmt.Sprintf("%-24s %s", strings.TrimPrefix(dir, "./"), r))
		all.killed, all.survived = all.killed+r.killed, all.survived+r.survived
		all.equivalent, all.broken = all.equivalent+r.equivalent, all.broken+r.broken
	}
	fmt.Fprintf(o.out, "\n%s\n%-24s %s\n", strings.Join(lines, "\n"), "all", all)
	return all.score(), nil
}

// try tries a sample of the mutants of the package in dir with the tests that run chooses, all if it is empty.
func (o options) try(dir string, tests []string, run string) (result, error) {
	var r result
	mutants, err := find(dir)
	if err != nil {
		return r, err
	}
	same, err := equivalents(o.lists, dir)
	if err != nil {
		return r, err
	}
	n := o.n
	if o.at != "" {
		at, err := regexp.Compile(o.at)
		if err != nil {
			return r, fmt.Errorf("-at %q: %w", o.at, err)
		}
		n = len(mutants)
		mutants = keep(mutants, func(m mutant) bool { return at.MatchString(m.String()) })
	}
	name := fnv.New64a()
	_, _ = io.WriteString(name, dir)
	rand.New(rand.NewPCG(o.seed, name.Sum64())).
		Shuffle(len(mutants), func(i, j int) { mutants[i], mutants[j] = mutants[j], mutants[i] })
	t, err := newTester(tests, run, o.timeout)
	if err != nil {
		return r, err
	}
	defer t.close()
	for _, m := range mutants {
		if r.killed+r.survived >= n {
			break
		}
		if same[m.identity()] {
			r.equivalent++
			continue
		}
		v, err := t.test(m)
		if err != nil {
			return r, err
		}
		switch v {
		case killed:
			r.killed++
		case survived:
			r.survived++
		case broken:
			r.broken++
			continue
		}
		fmt.Fprintf(o.out, "%-8s %s\n", v, m)
	}
	return r, nil
}

func keep(mutants []mutant, good func(mutant) bool) []mutant {
	var list []mutant
	for _, m := range mutants {
		if good(m) {
			list = append(list, m)
		}
	}
	return list
}
