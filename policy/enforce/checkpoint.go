package enforce

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"

	"github.com/twill-net/twill/internal/atomicfile"
	"github.com/twill-net/twill/netstate"
)

// checkpoint is the file that lets a node enforce policies after a boot while the API server does not answer: the tables
// as they were.
type checkpoint struct {
	Version  int
	Subnets  []netip.Prefix // of the node
	Sets     []netstate.Set
	Filters  []netstate.Filter
	Elements []netstate.Element
	Hooks    []netstate.Hook
}

const checkpointVersion = 1

func newCheckpoint(subnets []netip.Prefix, s netstate.State) checkpoint {
	c := checkpoint{Version: checkpointVersion, Subnets: subnets}
	for _, o := range s.Sorted() {
		switch o := o.(type) {
		case netstate.Set:
			c.Sets = append(c.Sets, o)
		case netstate.Filter:
			c.Filters = append(c.Filters, o)
		case netstate.Element:
			c.Elements = append(c.Elements, o)
		case netstate.Hook:
			c.Hooks = append(c.Hooks, o)
		}
	}
	return c
}

func (c checkpoint) state() netstate.State {
	s := netstate.State{}
	add(s, c.Sets)
	add(s, c.Filters)
	add(s, c.Elements)
	add(s, c.Hooks)
	return s
}

func add[T netstate.Object](s netstate.State, all []T) {
	for _, o := range all {
		s.Add(o)
	}
}

// readCheckpoint reads the file; the error is fs.ErrNotExist when there is none.
func readCheckpoint(path string) (c checkpoint, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("read the checkpoint of network policies %s: %w", path, err)
	}
	if c.Version != checkpointVersion || len(c.Hooks) == 0 {
		return c, fmt.Errorf("read the checkpoint of network policies %s: version %d with %d hooks, want version %d with one at least",
			path, c.Version, len(c.Hooks), checkpointVersion)
	}
	return c, nil
}

// save writes the file. One that cannot be written is logged only.
func (e *Enforcer) save() {
	if e.Checkpoint == "" || e.table == nil {
		return
	}
	data, err := json.Marshal(newCheckpoint(e.made.Subnets, e.table.State()))
	if err == nil {
		err = atomicfile.Write(e.Checkpoint, data, 0o600)
	}
	if err != nil {
		e.causes.Error(e.Log, "write the checkpoint of network policies", err)
	}
	e.dirty = false
}
