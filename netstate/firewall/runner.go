package firewall

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-iptables/iptables"

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
// not stop the agent.
const lockTimeout = 10

// command is one iptables binary.
type command struct {
	*iptables.IPTables
	path    string
	variant variant
	timeout int
}

// runner finds the iptables binaries.
type runner struct {
	timeout int                // in seconds
	opened  map[string]command // by path
	chosen  *variant
}

func newRunner() *runner { return &runner{timeout: lockTimeout, opened: map[string]command{}} }

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
	version, err := exec.Command(path, "--version").Output() // the library reads it too, but keeps the variant to itself
	if err != nil {
		return command{}, err
	}
	ipt, err := iptables.New(iptables.Path(path), iptables.Timeout(r.timeout))
	if err != nil {
		return command{}, err
	}
	c := command{ipt, path, legacy, r.timeout}
	if bytes.Contains(version, []byte("(nf_tables)")) {
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

// list returns what "iptables -t TABLE -S CHAIN" prints, or nil if there is no such chain.
func (c command) list(table, chain string) ([]string, error) {
	lines, err := c.List(table, chain)
	var failed *iptables.Error
	if !errors.As(err, &failed) {
		return lines, err
	}
	if failed.IsNotExist() || strings.Contains(failed.Error(), "incompatible, use 'nft' tool") {
		return nil, nil
	}
	return nil, err
}

// restore makes the site's chain, or empties it, and then executes lines, all in one transaction.
//
// go-iptables has no function for iptables-restore. With those that it has, the rules would be appended to a temporary
// chain, the jump replaced and the chain renamed: a dozen runs, each of which copies legacy iptables' whole table.
// Between listing and replacing the jump by its number, that number may have become another program's rule; and after a
// crash the temporary chain remains under a name that flannel does not know.
func (c command) restore(s site, lines []string) error {
	cmd := exec.Command(c.path+"-restore", "--noflush")
	if c.HasRandomFully() { // --wait came in the same version
		cmd.Args = append(cmd.Args, "--wait="+strconv.Itoa(c.timeout))
	}
	lines = slices.Concat([]string{"*" + s.table, ":" + s.chain + " - [0:0]"}, lines, []string{"COMMIT", ""})
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	message := strings.Join(strings.Fields(string(out)), " ")
	if strings.Contains(message, "can't initialize") {
		return fmt.Errorf("the kernel has no table %s for %s: load its module, or let Twill use nftables: %s", s.table,
			c.variant, message)
	}
	return fmt.Errorf("run %s: %w: %s", strings.Join(cmd.Args, " "), err, message)
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
	chains, err := c.ListChains(table)
	if err != nil {
		return false, err
	}
	for _, chain := range chains {
		if isOurs(chain) {
			continue
		}
		lines, err := c.List(table, chain)
		if err != nil {
			return false, err
		}
		for _, l := range lines {
			rule := strings.HasPrefix(l, "-A ")
			if words := split(l); rule && !isOurs(words[len(words)-1]) || strings.HasPrefix(l, "-N ") {
				return true, nil
			}
		}
	}
	return false, nil
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
