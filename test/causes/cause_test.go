package causes

import (
	"fmt"
	"strings"
)

// cause is something that may lose packets.
type cause struct {
	number int
	kind   string
	place  string   // where it is, as the doctor calls it: "node1", "node1/pod1", "underlay"
	also   []string // places that are right too: the other end of a cable
	steps  []step
	// tokens identify the object: of each group one has to be in what the doctor says, as a word of its own. Variables
	// that a step sets are replaced, by one token for each of their lines.
	tokens [][]string
}

// step is a command and the one that takes it back, for the shell of a namespace.
type step struct {
	in     string // a place
	before string // reads what undo needs, into the variable OLD of this step
	do     string // what it prints becomes the variable NEW of this step
	undo   string
}

// String is the cause as commands for people.
func (c *cause) String() string {
	var lines []string
	for _, s := range c.steps {
		line := s.in + ": " + s.do
		if s.before != "" {
			line = s.in + ": OLD=$(" + s.before + "); " + s.do
		}
		lines = append(lines, line)
	}
	return fmt.Sprintf("%d %s at %s: %s", c.number, c.kind, c.place, strings.Join(lines, "; "))
}

// add is a step that adds something by one command and deletes it by another, which differ in one word only.
func add(in, command, object string) step {
	return inverse(in, command, "add", "del", object)
}

// inverse is a step whose command and its undoing differ in their verb only.
func inverse(in, command, verb, back, object string) step {
	join := func(verb string) string { return strings.Join(strings.Fields(command+" "+verb+" "+object), " ") }
	return step{in: in, do: join(verb), undo: join(back)}
}

// one returns groups of tokens of which each has only one alternative.
func one(tokens ...string) [][]string {
	var groups [][]string
	for _, t := range tokens {
		groups = append(groups, []string{t})
	}
	return groups
}
