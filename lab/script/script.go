// Package script runs labs from files: a script brings a lab up, alters or breaks it, and says what must hold. The
// language is that of rsc.io/script (one command a line, ! for one that must fail); the files that a script needs
// stand behind it in txtar form. "twillctl lab verbs" explains the vocabulary, and so does the command help.
package script

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"
	"rsc.io/script"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
)

// Runner says where and with what scripts run.
type Runner struct {
	Programs lab.Programs  // zero: lab.FindPrograms
	Dir      string        // of the labs' state; empty: lab.DefaultDir
	Name     string        // of the lab; empty: LabName
	Prefix   string        // of the labs' names; empty: "s"
	Keep     bool          // leave the lab of a script that failed
	FastPath bool          // pods' packets take the fast path in all labs whose backend has one
	Proxy    string        // the mode of kube-proxies in labs that have them; empty: the script's
	Brief    bool          // show a section's commands only if one of them failed
	Follower Follower      // nil: nobody
	Seed     uint64        // draws the order and the pace of rollouts; 0: the nodes' order, two seconds between
	Patience time.Duration // the command within repeats for at least this long: tests judge no pace
	Env      []string      // more variables that the script has, NAME=VALUE
}

// run is one script being run.
type run struct {
	Runner
	name    string // of the lab
	work    string // the script's directory
	engine  *script.Engine
	lab     *lab.Lab // nil before the command up
	streams map[string]*stream
	traffic traffic
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// LabName returns the name of the lab of a script file.
func (o Runner) LabName(file string) string {
	name := cmp.Or(
		o.Prefix,
		"s",
	) + notInNames.ReplaceAllString(
		strings.ToLower(strings.TrimSuffix(filepath.Base(file), ".txtar")),
		"",
	)
	return name[:min(len(name), 20)]
}

// Run runs a script in a lab of its own, and removes the lab. The log gets what a reader wants to see: sections,
// commands and what they print.
func (o Runner) Run(ctx context.Context, file string, data []byte, log io.Writer) (err error) {
	work, err := os.MkdirTemp("", "twill-script-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if o.Programs.Agent == "" {
		if o.Programs, err = lab.FindPrograms(); err != nil {
			return err
		}
	}
	r := &run{Runner: o, name: cmp.Or(o.Name, o.LabName(file)), work: work, streams: map[string]*stream{}}
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.isFree(); err != nil {
		return err
	}
	if _, err := lab.Down(r.Dir, r.name); err != nil { // of a run that crashed
		return err
	}
	defer func() { err = errors.Join(err, r.end(err, log)) }()
	return r.execute(ctx, file, data, log)
}

// isFree returns an error if the name that was asked for is a lab's, which may be somebody's: a script has one of its own.
func (r *run) isFree() error {
	labs, err := lab.List(r.Dir)
	if err == nil && r.Name != "" && slices.Contains(labs, r.Name) {
		return fmt.Errorf("there is a lab %s, and a script has one of its own: remove it with twillctl lab down --name %s, or give another --name", r.Name, r.Name)
	}
	return err
}

// lock keeps two runs of one script from removing each other's lab. A socket's abstract name is free again when
// its process has ended, however it ended.
func (r *run) lock() (unlock func(), err error) {
	l, err := net.Listen("unix", "@twill-lab-run-"+r.name)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("the lab %s is that of a script that another program runs: wait for its end", r.name)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the lab %s: %w", r.name, err)
	}
	return func() { l.Close() }, nil
}

func (r *run) execute(ctx context.Context, file string, data []byte, log io.Writer) error {
	r.engine = script.NewEngine()
	r.engine.Quiet = r.Brief
	for name, v := range r.verbs() {
		r.engine.Cmds[name] = r.command(v)
	}
	r.engine.Conds["proxy"] = script.PrefixCondition("kube-proxies have the mode <suffix>", r.hasProxy)
	r.tell(data)
	state, err := script.NewState(
		ctx,
		r.work,
		append([]string{
			"PATH=" + os.Getenv("PATH"),
			"HOME=/root",
			"LAB=" + r.name,
			"WORK=" + r.work,
			"TWILLD=" + r.Programs.Agent,
		}, r.Env...),
	)
	if err != nil {
		return err
	}
	archive := txtar.Parse(data)
	if err := state.ExtractFiles(archive); err != nil {
		return fmt.Errorf("unpack %s: %w", file, err)
	}
	err = r.engine.Execute(state, file, bufio.NewReader(bytes.NewReader(archive.Comment)), log)
	if stopped := ctx.Err(); err != nil && stopped != nil && !errors.Is(err, stopped) { // a program that was running says how it was ended
		err = fmt.Errorf("%w: %w", err, stopped)
	}
	return errors.Join(err, state.CloseAndWait(log))
}

// hasProxy is the condition [proxy:MODE].
func (r *run) hasProxy(_ *script.State, mode string) (bool, error) {
	if r.lab == nil {
		return false, errNoLab
	}
	return r.lab.Spec().Proxy == mode, nil
}

// Do runs one command of the vocabulary in a lab that is up. Files are those of the working directory.
func Do(ctx context.Context, l *lab.Lab, w io.Writer, name string, args ...string) error {
	work, err := os.Getwd()
	if err != nil {
		return err
	}
	r := &run{name: l.Name(), work: work, lab: l, streams: map[string]*stream{}, engine: script.NewEngine()}
	v, ok := r.verbs()[name]
	if !ok {
		return fmt.Errorf("there is no command %q: twillctl lab verbs lists them", name)
	}
	state, err := script.NewState(ctx, work, os.Environ())
	if err != nil {
		return err
	}
	defer r.rest()
	c := &call{ctx: ctx, state: state}
	err = c.run(v(), args)
	if _, writeErr := io.WriteString(w, c.out.String()+c.errOut.String()); writeErr != nil {
		return writeErr
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// rest ends what a script has going on.
func (r *run) rest() {
	for _, s := range r.streams {
		s.Close()
	}
	r.traffic.end()
}

// end removes what the script made. Of a script that failed it shows the agents' last words first.
func (r *run) end(failed error, log io.Writer) error {
	r.rest()
	if r.lab == nil {
		return nil
	}
	if failed != nil {
		for _, n := range r.lab.Nodes() {
			if text, err := os.ReadFile(n.Log()); err == nil {
				lines := strings.Split(strings.TrimSpace(string(text)), "\n")
				fmt.Fprintf(log, "%s:\n  %s\n", n.Log(), strings.Join(lines[max(0, len(lines)-12):], "\n  "))
			}
		}
		if r.Keep {
			fmt.Fprintf(log, "the lab is kept: twillctl lab down --name %s removes it\n", r.name)
			return nil
		}
	}
	return r.lab.Down()
}

// Title is the first comment of a script: what it shows, in one line.
func Title(data []byte) string {
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(strings.TrimPrefix(line, "#"))
}

// Vocabulary writes the commands that scripts know, beside rsc.io/script's own, or details of those that are named.
func Vocabulary(w io.Writer, names ...string) error {
	r := &run{engine: &script.Engine{Cmds: map[string]script.Cmd{}}}
	for name, v := range r.verbs() {
		r.engine.Cmds[name] = r.command(v)
	}
	if len(names) == 0 {
		return r.engine.ListCmds(w, true)
	}
	maps.Insert(r.engine.Cmds, maps.All(script.DefaultCmds()))
	return r.engine.ListCmds(w, true, names...)
}

// Names are the commands of the vocabulary, sorted.
func Names() []string { return slices.Sorted(maps.Keys((&run{}).verbs())) }

// node finds a node by name.
func (r *run) node(name string) (*lab.Node, error) {
	if r.lab == nil {
		return nil, errNoLab
	}
	var names []string
	for _, n := range r.lab.Nodes() {
		if n.Name == name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return nil, fmt.Errorf("there is no node %q: want one of %v", name, names)
}

// pod finds a pod by NODE/POD.
func (r *run) pod(id string) (*lab.Pod, error) {
	if r.lab == nil {
		return nil, errNoLab
	}
	return r.lab.FindPod(id)
}

func (r *run) find(name string) (host.Host, error) {
	if r.lab == nil {
		return host.Host{}, errNoLab
	}
	return r.lab.Find(name)
}

var errNoLab = errors.New("there is no lab yet: begin with the command up")
