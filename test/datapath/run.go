package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// bench is a run of the benchmark.
type bench struct {
	options
	log   io.Writer
	sites map[string]*site // by siteName

	results results
	passed  map[variant]counts // what took the fast path while its variant was measured
	notes   []string           // what a reader of the tables must know
}

// note keeps a sentence for the end.
func (b *bench) note(format string, args ...any) {
	b.notes = append(b.notes, fmt.Sprintf(format, args...))
}

// up brings up a lab for each path of each backend, and leaves out the variants whose fast path is off.
func (b *bench) up(ctx context.Context) error {
	var kept []variant
	off := map[string]bool{}
	for _, v := range b.variants {
		name := siteName(v)
		if b.sites[name] == nil && !off[name] {
			s, err := upSite(ctx, v)
			if err != nil {
				return err
			}
			b.sites[name] = s
			if off[name], err = b.isOff(ctx, s, v); err != nil {
				return err
			}
		}
		if !off[name] {
			kept = append(kept, v)
		}
	}
	if len(kept) == 0 {
		return fmt.Errorf("nothing to measure: %s", strings.Join(b.notes, " "))
	}
	b.variants = kept
	return nil
}

// isOff reports whether a lab that is to have the fast path has not, and ends it then.
func (b *bench) isOff(ctx context.Context, s *site, v variant) (bool, error) {
	if !v.fast {
		return false, nil
	}
	why, err := s.waitFast(ctx)
	if err != nil || why == "" {
		return false, err
	}
	b.note("The fast path of %s was not measured, because it is off on %s.", v.backend, why)
	delete(b.sites, siteName(v))
	return true, s.Down()
}

func (b *bench) down() error {
	var errs []error
	for _, s := range b.sites {
		errs = append(errs, s.Down())
	}
	return errors.Join(errs...)
}

// run measures all variants, a round each after another.
func (b *bench) run(ctx context.Context) error {
	idle, err := b.idle(ctx)
	if err != nil {
		return err
	}
	if idle > 0.05 {
		b.note("Before the first round %.0f %% of the processors' time was taken: this machine was not idle.", 100*idle)
	}
	defer b.judge()
	for round := range b.rounds {
		for _, v := range turned(b.variants, round) {
			p, err := b.pair(ctx, v)
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, v, err)
			}
			b.results[v] = append(b.results[v], p)
			fmt.Fprintf(b.log, "round %d of %d: %-18s %s\n", round+1, b.rounds, v, p)
		}
	}
	return nil
}

// idle returns the share of the processors' time that is taken while nothing is measured.
func (b *bench) idle(ctx context.Context) (float64, error) {
	before, err := readClock()
	if err != nil {
		return 0, err
	}
	if err := wait(ctx, 2*time.Second); err != nil {
		return 0, err
	}
	after, err := readClock()
	return after.since(before).share(), err
}

// pair measures the nodes of a variant, and then its pods.
func (b *bench) pair(ctx context.Context, v variant) (p pair, err error) {
	s := b.sites[siteName(v)]
	from, to := s.nodes(v.family)
	if p.node, _, err = b.sample(ctx, s, from, to); err != nil {
		return p, fmt.Errorf("between nodes: %w", err)
	}
	from, to = s.pods(v.family)
	var passed counts
	if p.pod, passed, err = b.sample(ctx, s, from, to); err != nil {
		return p, fmt.Errorf("between pods: %w", err)
	}
	sum := b.passed[v]
	sum.add(passed, counts{})
	b.passed[v] = sum
	return p, nil
}

// ripe is the age at which a flow of UDP is one of both directions to conntrack for good, and so one for the fast path.
const ripe = 2500 * time.Millisecond

// sample measures everything between two hosts. The flow of UDP is opened first, so that it ages meanwhile. Counted is
// what met the fast path's programs, but for connections, whose first and last packets they leave to the kernel.
func (b *bench) sample(ctx context.Context, s *site, from, to end) (m sample, passed counts, err error) {
	length := time.Duration(b.seconds) * time.Second
	before, err := s.counts()
	if err != nil {
		return m, passed, err
	}
	udp, err := b.openFlow("udp", from, to)
	if err != nil {
		return m, passed, err
	}
	defer udp.close()
	opened := time.Now()
	if _, err = udp.measure(0); err != nil {
		return m, passed, err
	}
	if m.gbits, m.cpu, err = stream(ctx, from, to, b.seconds); err != nil {
		return m, passed, err
	}
	if m.tcp, err = b.measureTCP(from, to, length); err != nil {
		return m, passed, err
	}
	if err = wait(ctx, time.Until(opened.Add(ripe))); err != nil {
		return m, passed, err
	}
	if m.udp, err = udp.measure(length); err != nil {
		return m, passed, err
	}
	after, err := s.counts()
	if err != nil {
		return m, passed, err
	}
	passed.add(after, before)
	m.connects, err = b.connections(from, to, length)
	return m, passed, err
}

func (b *bench) measureTCP(from, to end, length time.Duration) (exchange, error) {
	f, err := b.openFlow("tcp", from, to)
	if err != nil {
		return exchange{}, err
	}
	defer f.close()
	return f.measure(length)
}

// judge notes what was lost, and how many packets took the fast path.
func (b *bench) judge() {
	for _, v := range allVariants() {
		lost := 0
		for _, p := range b.results[v] {
			lost += p.node.udp.lost + p.pod.udp.lost
		}
		if lost > 0 {
			b.note("%s: %d datagrams of UDP or their answers were lost, and each cost a second.", v, lost)
		}
		if v.fast && len(b.results[v]) > 0 {
			b.note("%s: %s.", v, b.passed[v])
		}
	}
}

// wait returns after so long, or when ctx is done.
func wait(ctx context.Context, long time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(long):
		return nil
	}
}
