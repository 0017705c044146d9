package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twill-net/twill/test/cluster"
)

// cyclonusSuite is the cases of cyclonus, which makes NetworkPolicies and judges connections between pods.
type cyclonusSuite struct{ programs }

// cyclonusWorker is the image that its pods have.
const cyclonusWorker = "docker.io/mfenwick100/cyclonus-worker:latest"

func (cyclonusSuite) spec(s cluster.Spec) cluster.Spec { return s }

// pack makes the one image: cyclonus' worker, and the commands of agnhost with which it tries connections, behind one
// that has SCTP where the kernel has none.
func (p cyclonusSuite) pack(ctx context.Context, archive string) error {
	i := cluster.Image{Name: cyclonusWorker, Entry: []string{"/worker"}}
	err := errors.Join(
		i.Add(ctx, "/worker", filepath.Join(p.bin, "cyclonus", "worker")),
		i.Add(ctx, "/agnhost", filepath.Join(p.bin, "conformance", "agnhost")),
		i.Add(ctx, "/agnhost-genuine", p.kube("agnhost-small")),
	)
	if err != nil {
		return fmt.Errorf("pack %s: %w", i.Name, err)
	}
	return cluster.WriteImages(archive, i)
}

func (cyclonusSuite) prepare(context.Context, cluster.Spec) error { return nil }

func (p cyclonusSuite) test(ctx context.Context, s cluster.Spec, o options, dir string) error {
	log, err := os.Create(filepath.Join(dir, "cyclonus.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	report := filepath.Join(dir, "report.json")
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, "cyclonus", "cyclonus"),
		"-report", report, "-focus", o.focus, "-skip", o.skip)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	ran := cmd.Run()
	file, err := os.Open(report)
	if err != nil {
		return fmt.Errorf("%w; see %s", errors.Join(ran, err), log.Name())
	}
	defer file.Close()
	sum, err := readCyclonus(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", report, err)
	}
	fmt.Print(sum)
	err = os.WriteFile(filepath.Join(dir, "summary.txt"), []byte(sum.String()), 0o644)
	if ran = cmp.Or(ran, sum.err()); ran != nil {
		ran = fmt.Errorf("cyclonus: %w; see %s", ran, log.Name())
	}
	return cmp.Or(ran, err)
}

// cyclonusCase is what came of one case.
type cyclonusCase struct {
	Name    string
	Passed  bool
	Error   string // why it was not carried out to its end
	Seconds float64
	Steps   []struct {
		Tries          int
		Wrong, Correct int // pairs of pods
	}
}

// cyclonusSummary is what came of a run.
type cyclonusSummary []cyclonusCase

func readCyclonus(report io.Reader) (cyclonusSummary, error) {
	var s cyclonusSummary
	for d := json.NewDecoder(report); ; {
		var c cyclonusCase
		err := d.Decode(&c)
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		if err != nil {
			return nil, err
		}
		s = append(s, c)
	}
}

// again reports whether a step of the case was tried more than once.
func (c cyclonusCase) again() bool {
	return slices.ContainsFunc(c.Steps, func(s struct{ Tries, Wrong, Correct int }) bool { return s.Tries > 1 })
}

// count returns how many passed, and how many of those in a second try.
func (s cyclonusSummary) count() (passed, again int) {
	for _, c := range s {
		if c.Passed {
			passed++
			if c.again() {
				again++
			}
		}
	}
	return passed, again
}

// String names the cases that failed, with what was wrong in each step, and those that passed in a second try.
func (s cyclonusSummary) String() string {
	var b strings.Builder
	pairs, took := 0, 0.0
	for _, c := range s {
		took += c.Seconds
		switch {
		case !c.Passed:
			fmt.Fprintf(&b, "failed: %s\n", c.Name)
			if c.Error != "" {
				fmt.Fprintf(&b, "    %s\n", strings.SplitN(c.Error, "\n", 2)[0])
			}
		case c.again():
			fmt.Fprintf(&b, "failed once, then passed: %s\n", c.Name)
		}
		for n, step := range c.Steps {
			pairs += step.Wrong + step.Correct
			if step.Wrong > 0 {
				fmt.Fprintf(&b, "    step %d: %d of %d pairs of pods are wrong\n", n+1, step.Wrong, step.Wrong+step.Correct)
			}
		}
	}
	passed, again := s.count()
	fmt.Fprintf(&b, "%d passed (%d of them in a second try), %d failed; %d pairs of pods were judged in %s\n",
		passed, again, len(s)-passed, pairs, time.Duration(took)*time.Second)
	return b.String()
}

// err says why the run is no success: a case failed, or none ran.
func (s cyclonusSummary) err() error {
	passed, _ := s.count()
	switch {
	case len(s) == 0:
		return errors.New("no case ran")
	case passed < len(s):
		return fmt.Errorf("%d cases failed", len(s)-passed)
	}
	return nil
}
