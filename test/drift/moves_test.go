//go:build soak

package drift

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
)

// object is something of the agent's: the words that setters' commands hold for it, and which setters alter it.
type object struct {
	name    string // its kind and its name
	words   map[string]string
	report  map[string]any // JSON fields, for OLD
	setters []setter
	scope   scope // the flows that it has to do with
	// draw returns a move that is no setter's.
	draw func(*rand.Rand) move
}

// A setter alters one attribute. In its command DEV is the device and VALUE one of the values; what other words stand
// for comes with the object. Undo is the command that takes it back, with OLD for what the device reports in the
// field; empty: the command with OLD. After is run when it was repaired, to remove what else it made.
type setter struct {
	attr, command string
	values        string // separated by spaces
	field         string // of the JSON report
	undo          string
	after         string
}

// move is one alteration: a shell command on the node or a function, and how to take it back.
type move struct {
	number           int
	object, attr     string
	do, undo, leaves string
	send, back       func() error // instead of do and undo
	scope            scope
}

func (m move) String() string { return fmt.Sprintf("%s of %s: %s", m.attr, m.object, m.do) }

// kind is the first word of the object's name.
func (m move) kind() string {
	kind, _, _ := strings.Cut(m.object, " ")
	return kind
}

// entry reports whether the move is about what the kernel also changes by itself all the time.
func (m move) entry() bool {
	return strings.HasSuffix(m.kind(), "neigh") || strings.HasSuffix(m.kind(), "fdb") || m.kind() == "pod"
}

// space is all moves of a lab: objects by kind. Each kind is drawn as often as the others, however many objects it has.
type space struct {
	kinds   []string
	objects map[string][]object
}

func newSpace(objects []object) space {
	s := space{objects: map[string][]object{}}
	for _, o := range objects {
		kind, _, _ := strings.Cut(o.name, " ")
		if s.objects[kind] == nil {
			s.kinds = append(s.kinds, kind)
		}
		s.objects[kind] = append(s.objects[kind], o)
	}
	return s
}

// draw returns a random move of a random object.
func (s space) draw(random *rand.Rand) move {
	of := s.objects[s.kinds[random.IntN(len(s.kinds))]]
	o := of[random.IntN(len(of))]
	if o.draw != nil {
		return o.draw(random)
	}
	by := o.setters[random.IntN(len(o.setters))]
	values := strings.Fields(by.values)
	return o.move(by, values[random.IntN(len(values))])
}

// all returns every move that a setter makes and whose text matches.
func (s space) all(what *regexp.Regexp) []move {
	var moves []move
	for _, kind := range s.kinds {
		for _, o := range s.objects[kind] {
			for _, by := range o.setters {
				for value := range strings.FieldsSeq(by.values) {
					if m := o.move(by, value); what.MatchString(m.String()) {
						moves = append(moves, m)
					}
				}
			}
		}
	}
	return moves
}

// move is what a setter does to the object.
func (o object) move(s setter, value string) move {
	words := map[string]string{"VALUE": value, "OLD": "-"}
	if old, ok := o.report[s.field]; ok {
		words["OLD"] = strings.NewReplacer("true", "1", "false", "0").Replace(fmt.Sprint(old))
	}
	for k, v := range o.words {
		words[k] = v
	}
	m := move{object: o.name, attr: s.attr, do: fill(s.command, words), leaves: fill(s.after, words), scope: o.scope}
	if strings.HasSuffix(s.attr, "flushed") { // of all peers
		m.scope.peer = ""
	}
	undo := s.undo
	if undo == "" && words["OLD"] != "-" {
		undo = strings.ReplaceAll(s.command, "VALUE", "OLD")
	}
	if m.undo = fill(undo, words); m.undo == "" {
		m.undo = "true"
	}
	return m
}

var word = regexp.MustCompile(`\b[A-Z]{2,}9?\b`)

func fill(command string, words map[string]string) string {
	return word.ReplaceAllStringFunc(command, func(w string) string {
		if v, ok := words[w]; ok {
			return v
		}
		return w
	})
}
