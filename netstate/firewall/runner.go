package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-iptables/iptables"

	"github.com/twill-net/twill/internal/savedrule"
	"github.com/twill-net/twill/netstate"
)

// variant is the kernel interface behind an iptables binary.
type variant uint8

const (
	nft    variant = iota // iptables-nft: rules are in nf_tables, in tables with iptables' names
	legacy                // iptables-legacy: rules are in ip_tables
)

func (v variant) String() string { return [...]string{"iptables-nft", "iptables-legacy"}[v] }

// lockTimeout is how long a command waits for iptables' lock, in seconds. A program that never releases the lock must
// not stop the agent, and neither must a command that hangs: it is ended after programTimeout.
const (
	lockTimeout    = 10
	programTimeout = 20 * time.Second
)

// command is one iptables binary.
type command struct {
	*iptables.IPTables
	*runner
	path    string
	variant variant
}

// runner finds the iptables binaries.
type runner struct {
	timeout int                // of the lock, in seconds
	most    time.Duration      // that a command may take
	opened  map[string]command // by path
	chosen  *variant
}

func newRunner() *runner {
	return &runner{timeout: lockTimeout, most: programTimeout, opened: map[string]command{}}
}

// command returns the binary of a variant and family. A missing one is looked for again at the next call.
func (r *runner) command(v variant, family netstate.Family) (command, error) {
	plain := "iptables"
	if family == netstate.IPv6 {
		plain = "ip6tables"
	}
	name := strings.Replace(v.String(), "iptables", plain, 1)
	for _, candidate := range []string{name, plain} {
		if c, err := r.open(candidate); err == nil && c.variant == v {
			return c, nil
		}
	}
	return command{}, fmt.Errorf("find %s: %w", name, exec.ErrNotFound)
}

// open asks a binary for its version, once.
func (r *runner) open(name string) (command, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return command{}, err
	}
	if c, ok := r.opened[path]; ok {
		return c, nil
	}
	version, err := r.run("", path, "--version") // the library reads it too, but keeps the variant to itself
	if err != nil {
		return command{}, err
	}
	ipt, err := iptables.New(iptables.Path(path), iptables.Timeout(r.timeout))
	if err != nil {
		return command{}, err
	}
	c := command{ipt, r, path, legacy}
	if strings.Contains(version, "(nf_tables)") {
		c.variant = nft
	}
	r.opened[path] = c
	return c, nil
}

// variant returns the variant that rules are written with: legacy where legacy tables are in use, as Kubernetes'
// iptables-wrappers choose, otherwise that of the binary "iptables".
func (r *runner) variant() variant {
	if r.chosen != nil {
		return *r.chosen
	}
	v := nft
	if _, err := r.command(legacy, netstate.IPv4); err == nil {
		plain, err := r.open("iptables")
		_, noNF := r.command(nft, netstate.IPv4)
		inUse, _ := r.legacyInUse()
		if inUse || err == nil && plain.variant == legacy || noNF != nil {
			v = legacy
		}
	}
	r.chosen = &v
	return v
}

// failure is that a command failed, with what it complained of.
type failure struct {
	error
	complaint string
}

func (f failure) Error() string { return fmt.Sprintf("%v: %s", f.error, f.complaint) }
func (f failure) Unwrap() error { return f.error }

// isNotExist reports whether a chain, or the table of one, does not exist.
func (f failure) isNotExist() bool {
	return slices.ContainsFunc([]string{"No chain/target/match by that name.", "No such file or directory", "does not exist",
		"incompatible, use 'nft' tool"}, func(s string) bool { return strings.Contains(f.complaint, s) })
}

// run runs a program, and ends it, with what it started, when it takes too long. The error is a failure.
func (r *runner) run(stdin, path string, args ...string) (stdout string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), r.most)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &complaint
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, time.Second
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = cmd.Run()
	switch {
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil:
		err = fmt.Errorf("it has not ended within %s, and was ended", r.most)
	}
	return "", failure{fmt.Errorf("run %s: %w", strings.Join(cmd.Args, " "), err), strings.Join(strings.Fields(complaint.String()), " ")}
}

// list returns what "iptables -t TABLE -S CHAIN" prints, or nil if there is no such chain. Without a chain it lists
// the whole table. The library's List has no deadline.
func (c command) list(table string, chain ...string) ([]string, error) {
	args := append([]string{"-t", table, "-S"}, chain...)
	if c.HasRandomFully() { // --wait with seconds is older
		args = append(args, "--wait", strconv.Itoa(c.timeout))
	}
	printed, err := c.run("", c.path, args...)
	var failed failure
	switch {
	case errors.As(err, &failed) && failed.isNotExist():
		return nil, nil
	case err != nil:
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(printed, "\n"), "\n"), nil
}

// restore makes the site's chain, or empties it, and then executes lines, all in one transaction.
//
// go-iptables has no function for iptables-restore. With those that it has, the rules would be appended to a temporary
// chain, the jump replaced and the chain renamed: a dozen runs, each of which copies legacy iptables' whole table.
// Between listing and replacing the jump by its number, that number may have become another program's rule; and after a
// crash the temporary chain remains under a name that flannel does not know.
func (c command) restore(s site, lines []string) error {
	args := []string{"--noflush"}
	if c.HasRandomFully() { // --wait came in the same version
		args = append(args, "--wait="+strconv.Itoa(c.timeout))
	}
	lines = slices.Concat([]string{"*" + s.table, ":" + s.chain + " - [0:0]"}, lines, []string{"COMMIT", ""})
	_, err := c.run(strings.Join(lines, "\n"), c.path+"-restore", args...)
	var failed failure
	if errors.As(err, &failed) && strings.Contains(failed.complaint, "can't initialize") {
		return fmt.Errorf("the kernel has no table %s for %s: load its module, or let Twill use nftables: %s", s.table,
			c.variant, failed.complaint)
	}
	return err
}

// legacyTable is a table of legacy iptables, and the binary that reads and writes it.
type legacyTable struct {
	command
	family netstate.Family
	name   string
}

// legacyTables returns the legacy tables that exist in this network namespace and have a binary. iptables-legacy must
// not list others: it would create them.
func (r *runner) legacyTables() ([]legacyTable, error) {
	var tables []legacyTable
	for _, family := range netstate.Families {
		names, err := legacyNames(family)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if c, err := r.command(legacy, family); err == nil {
				tables = append(tables, legacyTable{c, family, name})
			}
		}
	}
	return tables, nil
}

// legacyInUse reports whether any legacy table has a chain or rule that is not ours.
func (r *runner) legacyInUse() (bool, error) {
	tables, err := r.legacyTables()
	for _, t := range tables {
		if inUse, err := t.inUse(t.name); inUse || err != nil {
			return inUse, err
		}
	}
	return false, err
}

func (c command) inUse(table string) (bool, error) {
	lines, err := c.list(table)
	for _, l := range lines {
		words := savedrule.Words(l)
		if len(words) < 2 || isOurs(words[1]) {
			continue
		}
		if words[0] == "-N" || words[0] == "-A" && !isOurs(words[len(words)-1]) {
			return true, nil
		}
	}
	return false, err
}

// isOurs reports whether a chain has a name of ours.
func isOurs(chain string) bool {
	return slices.ContainsFunc(sites[:], func(s site) bool { return s.chain == chain })
}

// RandomFully reports whether masquerade rules of a mode can have --random-fully. nf_tables has had it as long as
// it has had masquerade; iptables since 1.6.2.
func (f *Firewall) RandomFully(mode netstate.Mode) bool {
	if mode == netstate.NFTables {
		return true
	}
	for _, family := range netstate.Families {
		if c, err := f.iptables.command(f.iptables.variant(), family); err == nil && !c.HasRandomFully() {
			return false
		}
	}
	return true
}
