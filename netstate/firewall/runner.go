package firewall

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/twill-net/twill/netstate"
)

// variant is the kernel interface behind an iptables binary.
type variant uint8

const (
	overNF variant = iota // iptables-nft: rules are in nf_tables, in tables with iptables' names
	legacy                // iptables-legacy: rules are in ip_tables
)

func (v variant) String() string { return [...]string{"iptables-nft", "iptables-legacy"}[v] }

// lockTimeout is for how many seconds a command waits for iptables' lock: a program that never releases it must not
// stop the agent.
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

// command returns the binary of a variant and family. A missing one is looked for again the next time.
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
		c.variant = overNF
	}
	r.opened[path] = c
	return c, nil
}

// variant returns the one that rules are written with: legacy where legacy tables are in use, as iptables-wrappers of
// Kubernetes does, otherwise what the binary "iptables" is.
func (r *runner) variant() variant {
	if r.chosen != nil {
		return *r.chosen
	}
	v := overNF
	if _, err := r.command(legacy, netstate.IPv4); err == nil {
		plain, err := r.open("iptables")
		_, noNF := r.command(overNF, netstate.IPv4)
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
	if errors.As(err, &failed) && (failed.IsNotExist() || strings.Contains(failed.Error(), "incompatible, use 'nft' tool")) {
		return nil, nil
	}
	return lines, err
}

// restore empties the site's chain, or makes it, and carries out lines, in one transaction of iptables-restore, for which
// go-iptables has no function. With its
// functions a chain would be filled under another name, the jump replaced and the chain renamed, in a dozen runs, of
// which each copies the whole legacy table. Between two of them the jump's number may have become another program's
// rule, and what a crash leaves has a name that neither flannel nor a later Twill knows.
func (c command) restore(s site, lines []string) error {
	cmd := exec.Command(c.path+"-restore", "--noflush")
	if c.HasRandomFully() { // --wait came in the same version
		cmd.Args = append(cmd.Args, "--wait="+strconv.Itoa(c.timeout))
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf("*%s\n:%s - [0:0]\n%s\nCOMMIT\n", s.table, s.chain, strings.Join(lines, "\n")))
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

// legacyTables returns the legacy tables that exist in this network namespace. One that iptables-legacy is asked for
// comes into being, so only these are; without the binary nothing can be read.
func (r *runner) legacyTables() ([]legacyTable, error) {
	var tables []legacyTable
	files := map[netstate.Family]string{netstate.IPv4: "ip_tables_names", netstate.IPv6: "ip6_tables_names"}
	for _, family := range netstate.Families {
		names, err := os.ReadFile("/proc/thread-self/net/" + files[family])
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it does not exist before the kernel's module is loaded
			return nil, fmt.Errorf("list legacy tables: %w", err)
		}
		for _, name := range strings.Fields(string(names)) {
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
		if isOurs(table, chain) {
			continue
		}
		lines, err := c.List(table, chain)
		if err != nil {
			return false, err
		}
		for _, l := range lines {
			words := split(l)
			if words[0] == "-N" || words[0] == "-A" && !isOurs(table, words[len(words)-1]) {
				return true, nil
			}
		}
	}
	return false, nil
}

// isOurs reports whether a table's chain has a name of ours.
func isOurs(table, chain string) bool {
	for _, role := range roles {
		if s := siteOf(role); s.table == table && s.chain == chain {
			return true
		}
	}
	return false
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
