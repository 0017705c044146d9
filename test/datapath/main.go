// Command datapath compares what packets between pods of two nodes cost with what they cost between the nodes: one TCP
// stream, questions of a byte and their answers, and new connections, over the kernel's own path and the fast path. The
// nodes are a lab's. Documentation/benchmarks.md explains the figures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "datapath:", err)
		os.Exit(1)
	}
}

// options is what a run can be told.
type options struct {
	rounds   int
	seconds  int // of each measurement
	variants []variant
	write    string // the file that the chart is written to
	placement
}

// parse reads the command line.
func parse(args []string, log io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("datapath", flag.ContinueOnError)
	flags.SetOutput(log)
	flags.IntVar(&o.rounds, "rounds", 9, "how often each variant is measured")
	flags.IntVar(&o.seconds, "seconds", 2, "how long each stream, and each kind of question, is measured")
	list := flags.String("variants", "", "which variants, like vxlan/fast,host-gw/plain/ipv4: words of vxlan and host-gw, plain "+
		"and fast, ipv4 and ipv6; what is not named is measured in all its ways")
	flags.BoolVar(&o.pinned, "pin", true, "keep those that ask and those that answer on one processor, which is then never idle")
	flags.StringVar(&o.write, "write", "", "`file` to write a chart of the ratios to, as SVG")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.rounds < 1 || o.seconds < 1 || flags.NArg() > 0 {
		return o, fmt.Errorf("%s: want at least one round of at least one second, and no arguments but flags", strings.Join(args, " "))
	}
	o.variants, err = choose(*list)
	return o, err
}

func run(ctx context.Context, args []string, out, log io.Writer) error {
	o, err := parse(args, log)
	if err != nil {
		return err
	}
	// Threads that wait for packets keep a processor of Go's for themselves; others must not wait for it.
	runtime.GOMAXPROCS(max(runtime.NumCPU(), 8))
	b := &bench{options: o, log: log, sites: map[string]*site{}, results: results{}, passed: map[variant]counts{}}
	err = b.up(ctx)
	if err == nil {
		err = b.run(ctx)
	}
	if err = errors.Join(err, b.down()); err == nil {
		err = b.writeFile()
	}
	if len(b.results) > 0 { // also those of a run that ended early
		fmt.Fprintf(out, "%s.\n\n%s\n", b.conditions(), b.results.tables())
		for _, note := range b.notes {
			fmt.Fprintln(out, note)
		}
	}
	return err
}

// conditions says on what, when and for how long was measured.
func (b *bench) conditions() string {
	var name unix.Utsname
	kernel := "an unknown kernel"
	if unix.Uname(&name) == nil {
		release := strings.SplitN(unix.ByteSliceToString(name.Release[:]), ".", 3)
		kernel = "Linux " + strings.Join(release[:min(2, len(release))], ".")
	}
	text := fmt.Sprintf("%d processors, %s, %s: medians of %d rounds, %d s for each measurement",
		runtime.NumCPU(), kernel, time.Now().Format("2 January 2006"), b.finished(), b.seconds)
	if b.pinned {
		text += ", questions on one processor"
	}
	return text
}

// finished is how many rounds measured every variant.
func (b *bench) finished() int {
	rounds := b.rounds
	for _, v := range b.variants {
		rounds = min(rounds, len(b.results[v]))
	}
	return rounds
}

func (b *bench) writeFile() error {
	if b.write == "" {
		return nil
	}
	var svg strings.Builder
	if err := b.results.writeChart(&svg, b.conditions()); err != nil {
		return err
	}
	if err := os.WriteFile(b.write, []byte(svg.String()), 0o644); err != nil {
		return fmt.Errorf("write the chart: %w", err)
	}
	return nil
}
