package firewall

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/twill-net/twill/netstate"
)

// variant is the kernel interface behind an iptables binary.
type variant uint8

const (
	overNF variant = iota // iptables-nft: rules are in nf_tables, in tables with iptables' names
	legacy                // iptables-legacy: rules are in ip_tables
)

func (v variant) String() string { return [...]string{"iptables-nft", "iptables-legacy"}[v] }

// runLimit bounds one run of a binary: who holds the lock that --wait waits for must not stop the agent for ever.
const runLimit = 10 * time.Second

// tool is one iptables binary.
type tool struct {
	path        string
	randomFully bool // knows --random-fully; the same version brought iptables-restore --wait
	limit       time.Duration
}

// toolbox finds the iptables binaries, and asks each for its version once.
type toolbox struct {
	limit  time.Duration     // of one run; 0: runLimit
	probed map[string]probed // by path
	chosen *variant
}

type probed struct {
	tool    tool
	variant variant
}

// get is the binary of a variant and family. A binary that is missing is looked for again the next time.
func (b *toolbox) get(v variant, family netstate.Family) (tool, error) {
	plain := "iptables"
	if family == netstate.IPv6 {
		plain = "ip6tables"
	}
	name := strings.Replace(v.String(), "iptables", plain, 1)
	for _, candidate := range []string{name, plain} {
		if p, err := b.probe(candidate); err == nil && p.variant == v {
			return p.tool, nil
		}
	}
	return tool{}, fmt.Errorf("find %s: %w", name, exec.ErrNotFound)
}

func (b *toolbox) probe(name string) (probed, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return probed{}, err
	}
	if p, ok := b.probed[path]; ok {
		return p, nil
	}
	p, err := probe(path, cmp.Or(b.limit, runLimit))
	if err != nil {
		return probed{}, err
	}
	if b.probed == nil {
		b.probed = map[string]probed{}
	}
	b.probed[path] = p
	return p, nil
}

// variant is the one that rules are written with: legacy where legacy tables are in use, as iptables-wrappers of
// Kubernetes does, otherwise what the binary "iptables" is.
func (b *toolbox) variant() variant {
	if b.chosen == nil {
		v := overNF
		if _, err := b.get(legacy, netstate.IPv4); err == nil {
			plain, err := b.probe("iptables")
			if inUse, _ := legacyInUse(); inUse || (err == nil && plain.variant == legacy) {
				v = legacy
			} else if _, err := b.get(overNF, netstate.IPv4); err != nil {
				v = legacy
			}
		}
		b.chosen = &v
	}
	return *b.chosen
}

var versionText = regexp.MustCompile(`v(\d+)\.(\d+)\.(\d+)(?: \((\w+)\))?`)

// probe asks a binary for its version: "iptables v1.8.9 (nf_tables)"; before 1.8 there was only legacy.
func probe(path string, limit time.Duration) (probed, error) {
	t := tool{path: path, limit: limit}
	out, err := t.run("", nil, "--version")
	if err != nil {
		return probed{}, err
	}
	m := versionText.FindStringSubmatch(out)
	if m == nil {
		return probed{}, fmt.Errorf("version of %s is %q: want the form v1.8.9", path, out)
	}
	var version [3]int
	for i := range version {
		version[i], _ = strconv.Atoi(m[i+1])
	}
	t.randomFully = cmp.Or(cmp.Compare(version[0], 1), cmp.Compare(version[1], 6), cmp.Compare(version[2], 2)) >= 0
	if m[4] == "nf_tables" {
		return probed{t, overNF}, nil
	}
	return probed{t, legacy}, nil
}

// list is "iptables -t TABLE -S CHAIN", a rule a line; nil if there is no such chain.
func (t tool) list(table, chain string) ([]string, error) {
	out, err := t.run("", nil, "--wait", "-t", table, "-S", chain)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && noSuchChain(err.Error()) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(out), "\n"), nil
}

// noSuchChain recognises the two wordings of nft and legacy.
func noSuchChain(s string) bool {
	return strings.Contains(s, "No chain/target/match") || strings.Contains(s, "does not exist") ||
		strings.Contains(s, "incompatible, use 'nft' tool")
}

// restore applies lines, which are one table's, as one transaction.
func (t tool) restore(table string, lines []string) error {
	args := []string{"--noflush"}
	if t.randomFully {
		args = append(args, "--wait")
	}
	input := "*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
	_, err := t.run("-restore", []byte(input), args...)
	return err
}

// run runs the binary, or its sibling with that suffix, in the calling thread's network namespace; what it says on
// stderr becomes the error.
func (t tool) run(suffix string, stdin []byte, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), t.limit)
	defer cancel()
	var out, complaint bytes.Buffer
	path := t.path + suffix
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second // for a child of its own that holds stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &complaint
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", fmt.Errorf("run %s %s: it was ended after %s: another program may hold the lock of iptables", path,
			strings.Join(args, " "), t.limit)
	}
	if err != nil {
		said := strings.Join(strings.Fields(complaint.String()), " ")
		return "", fmt.Errorf("run %s %s: %w: %s", path, strings.Join(args, " "), err, said)
	}
	return out.String(), nil
}

// RandomFully says whether masquerade rules of a mode can have --random-fully. nf_tables has had it as long as
// it has had masquerade; iptables since 1.6.2.
func (f *Firewall) RandomFully(mode netstate.Mode) bool {
	if mode == netstate.NFTables {
		return true
	}
	for _, family := range netstate.Families {
		if t, err := f.tools.get(f.tools.variant(), family); err == nil && !t.randomFully {
			return false
		}
	}
	return true
}
