package fastpath

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // of the object
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/twill-net/twill/netstate"
)

//go:generate bpf/build bpf/fastpath.o

// object is what bpf/build makes of the programs' source.
//
//go:embed bpf/fastpath.o
var object []byte

// programs are in the order of enum program in bpf/maps.h.
var programs = []netstate.ProgramName{netstate.FromPod, netstate.ToPod}

// The keys of the map clock.
const (
	deadlineClock uint32 = iota
	pausedClock
)

// results are the names in enum result of bpf/maps.h.
var results = sync.OnceValues(func() ([]string, error) {
	spec, err := collection()
	if err != nil {
		return nil, err
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName("result", &enum); err != nil {
		return nil, fmt.Errorf("read the programs' results: %w", err)
	}
	names := make([]string, len(enum.Values))
	for _, v := range enum.Values {
		names[v.Value] = strings.ReplaceAll(v.Name, "_", "-")
	}
	return names[:slices.Index(names, "results")], nil
})

func collection() (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read the fast path's object: %w", err)
	}
	return spec, nil
}

// pins are the file names by the name of a program or a map. A program's has a hash of the object, a map's a hash of its
// layout: who finds a file of that name need not ask what is in it.
func pins(spec *ebpf.CollectionSpec) map[string]string {
	names := map[string]string{}
	for name := range spec.Programs {
		names[name] = "progs/" + name + "-" + hash(object)
	}
	for name, m := range spec.Maps {
		layout := fmt.Appendf(nil, "%s %d %d %d %d", m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags)
		layout = appendLayout(appendLayout(layout, m.Key), m.Value)
		names[name] = "maps/" + name + "-" + hash(layout)
	}
	return names
}

// appendLayout describes a type as far as programs of two versions must agree on it.
func appendLayout(to []byte, t btf.Type) []byte {
	s, ok := btf.As[*btf.Struct](t)
	if !ok {
		return to
	}
	for _, m := range s.Members {
		to = fmt.Appendf(to, " %s %d", m.Name, m.Offset)
		to = appendLayout(to, m.Type)
	}
	return to
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}
