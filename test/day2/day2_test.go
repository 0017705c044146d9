package day2

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testall"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/lab/script"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// always are the scripts that `make test`, and with an API server `make test-all`, run in three minutes; `make day2` runs all.
const always = "^(api-hangs|backends|crowd|fast-path|raised-mtu|refused|restarts)$"

// TestChanges runs the scripts whose names match the regular expression DAY2, in the order and at the pace that DAY2_SEED draws.
func TestChanges(t *testing.T) {
	chosen, err := regexp.Compile(cmp.Or(os.Getenv("DAY2"), always))
	if err != nil {
		t.Fatalf("DAY2: %v", err)
	}
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("DAY2_SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatalf("DAY2_SEED: %v: want a number", err)
	}
	files, err := filepath.Glob("*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d scripts: %v", len(files), err)
	}
	rows := &table{}
	for _, file := range files {
		name := strings.TrimSuffix(file, ".txtar")
		if !chosen.MatchString(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(data, []byte("-store kube")) {
				testall.Needs(t, "a built kube-apiserver")
			}
			spec := labtest.Spec(lab.Spec{})
			r := script.Runner{Programs: spec.Programs, Dir: spec.Dir, Prefix: "d", Brief: true, Seed: seed,
				Patience: testwait.Limit, Follower: rows.of(name)}
			if bytes.Contains(data, []byte("$PREVIOUS")) {
				r.Env = []string{"PREVIOUS=" + labtest.EarlierAgent(t)}
			}
			if err := r.Run(t.Context(), file, data, t.Output()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Logf("DAY2_SEED=%d\n%s", seed, rows)
}

// table has what each change has lost.
type table struct{ lines []string }

func (t *table) String() string {
	return "| script | change | pings lost | of one pod to another, longest silence | TCP, longest silence | " + before + " |\n" +
		"|---|---|---|---|---|---|\n" + strings.Join(t.lines, "\n")
}

// before is the commit whose figures stand beside the command losses, in a comment: what its agents lost.
const before = "80cbeba"

// of returns what follows one script.
func (t *table) of(name string) script.Follower { return &follower{table: t, name: name} }

// follower puts what the command losses prints into a table, with the commands before it.
type follower struct {
	table *table
	name  string
	since []string
}

func (f *follower) Before(script.Step) error { return nil }

func (f *follower) After(s script.Step, output string, _ error) {
	if !strings.HasPrefix(s.Command, "losses") {
		if f.since = append(f.since, s.Command); strings.HasPrefix(s.Command, "traffic") {
			f.since = nil
		}
		return
	}
	lost := strings.NewReplacer(" pings lost", "", "of one pod to another: ", "", "TCP silent: ", "", "; ", " | ").Replace(strings.TrimSpace(output))
	_, then, _ := strings.Cut(s.Command, "# "+before+": ")
	f.table.lines = append(f.table.lines, fmt.Sprintf("| %s | %s | %s | %s |", f.name, strings.Join(f.since, "; "), lost, then))
	f.since = nil
}
